"""The contract of the primitives, on every kind of device there is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.csrc.kinds import HostKind, Kind, ascend_kind
from tests.csrc.nixl_kind import NixlKind
from tests.csrc.world import World


@pytest.fixture(scope="session", params=["host", "ascend", "nixl"])
def backend(request: pytest.FixtureRequest) -> Kind:
    """A kind of device."""
    if request.param == "host":
        return HostKind()
    if request.param == "nixl":
        pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
        return NixlKind()
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return ascend_kind()


@pytest.fixture(autouse=True)
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing works on in the background after a test."""
    yield
    if "backend" in request.fixturenames:
        request.getfixturevalue("backend").close()


@pytest.fixture
def world(backend: Kind) -> World:
    """One group of one rank, two MoE devices, float32."""
    return World(kind=backend)
