"""The environment that `make npu-venv` makes: our packages, and the unmodified torch-npu wheel beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ascend.twin import ROOT

VENV = ROOT / "build/npu-venv"
PYTHON = VENV / "bin/python"


def wheel() -> Path:
    """The folder of the installed wheel; a test that needs it is skipped without."""
    found = [*VENV.glob("lib/python3.*/site-packages/torch_npu")]
    if not found:
        pytest.skip("no torch-npu wheel: run make npu-venv")
    return found[0]
