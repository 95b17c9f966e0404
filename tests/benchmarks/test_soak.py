"""What benchmarks/soak.py does with a process that outlives its instance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which lies beside the product and not in it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent / "benchmarks"))
    import soak as module  # noqa: PLC0415

    monkeypatch.setattr(module, "GONE_S", 0.0)
    return module


def test_who_is_still_there_is_told_by_number(soak: Any) -> None:
    """So that it can be ended; who has ended is not among them."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stays:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()

        assert soak.outlive([stays.pid, gone.pid]) == [stays.pid]
        stays.kill()
