"""The contract of the primitives, on every kind of device there is."""

from __future__ import annotations

import shutil

import pytest

from tests.csrc.kinds import HostKind, Kind, ascend_kind
from tests.csrc.world import World


@pytest.fixture(scope="session", params=["host", "ascend"])
def backend(request: pytest.FixtureRequest) -> Kind:
    """A kind of device."""
    if request.param == "host":
        return HostKind()
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return ascend_kind()


@pytest.fixture
def world(backend: Kind) -> World:
    """One group of one rank, two MoE devices, float32."""
    return World(kind=backend)
