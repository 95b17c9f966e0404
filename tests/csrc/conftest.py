"""One small instance for the tests of the primitives."""

from __future__ import annotations

import pytest

from tests.csrc.world import World


@pytest.fixture
def world() -> World:
    """One group of one rank, two MoE devices, float32."""
    return World()
