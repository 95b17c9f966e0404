"""What a frontend loads before it serves: it starts when another one was killed, and clients wait."""

from __future__ import annotations

import subprocess
import sys


def test_a_frontend_loads_no_torch() -> None:
    """A fresh interpreter imports what a replica imports, and torch, two seconds of it, is not among that."""
    script = "import sys, asap_ray.actors.app; print('torch' in sys.modules)"

    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert shown.stdout == "False\n"
