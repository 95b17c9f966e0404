"""One local Ray cluster for all tests of this folder, stopped at the end; nothing else is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray

from asap_ray.config import ServeConfig
from asap_ray.spec import ParallelSpec, PrefillSpec

T = TypeVar("T")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A cluster with eight logical NPUs."""
    ray.init(
        num_cpus=8,
        resources={"NPU": 8},
        object_store_memory=96 << 20,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for everything asynchronous."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def run(loop: asyncio.Runner) -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine to its end."""
    return loop.run


@pytest.fixture(scope="session")
def make_config(tiny_model: Path) -> Callable[..., ServeConfig]:
    """A configuration of the tiny model with the given degrees."""

    def make(name: str, dp_groups: int, tp: int, moe_devices: int) -> ServeConfig:
        return ServeConfig(
            model=str(tiny_model),
            name=name,
            parallel=ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices),
            prefill=PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0),
        )

    return make
