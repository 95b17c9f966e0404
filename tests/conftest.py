"""Shared by all tests: one thread a process, because several share two cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny

os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by what tests start
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Qwen3-MoE checkpoint of half a million parameters."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_random_checkpoint(directory, **tiny())
    return directory
