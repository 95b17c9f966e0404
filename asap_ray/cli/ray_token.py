"""Ray's own authentication for a cluster that we start: it listens on all interfaces, whatever address it is given."""

from __future__ import annotations

import os
import sys


def ask_for_token() -> None:
    """Unless the environment says otherwise, nobody joins without the token that Ray keeps in the home directory.

    Ray reads the mode once, when it is imported; what it then starts reads it again, and must find the same.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
