"""Whether threads can share a native call here."""

from __future__ import annotations

import pytest
import torch

from asap_ray import _native

assert torch.__version__  # which brings the OpenMP runtime

needs_a_team = pytest.mark.skipif(_native.team_of(3) != 3, reason="torch has brought no OpenMP runtime of 3 threads")
