"""asap-ray make-model."""

from __future__ import annotations
