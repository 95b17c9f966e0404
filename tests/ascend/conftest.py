"""The kernels, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ascend.twin import Twin, build


@pytest.fixture(scope="session")
def library() -> Path:
    """The library of the kernels on their twin."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return build()


@pytest.fixture
def twin(library: Path) -> Twin:
    """Devices without memory or launches."""
    return Twin(library)
