"""Two replicas of one application: an instance each, taken over when one dies, replaced one by one under load."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group

from asap_ray.actors.app import build_app
from asap_ray.actors.handle_target import HandleTarget
from asap_ray.actors.placement import running_in_app
from asap_ray.config import ServeConfig, config_to

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.thorough,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("cluster"),
]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
APP = "two"
PATIENCE_S = 120.0
CLIENTS = 4


def deploy(config: ServeConfig) -> None:
    """Deploy or redeploy with two replicas; returns when all replicas are of this configuration."""
    app: Any = build_app(config_to(config))
    two = app._bound_deployment.options(num_replicas=2)
    serve.run(two.bind(*app._bound_deployment.init_args), name=APP, route_prefix=None)


@pytest.fixture(scope="module")
def config(cluster: None, make_config: Callable[..., ServeConfig]) -> Iterator[ServeConfig]:
    """What both replicas serve at first, with one group and one MoE device each."""
    assert cluster is None
    config = make_config(APP, 1, 1, 1)
    deploy(config)
    yield config
    serve.delete(APP)


def pids(names: list[str]) -> dict[str, int]:
    """The processes of actors, by name."""
    found = {}
    for name in names:
        with contextlib.suppress(ValueError, RayActorError):  # gone meanwhile
            actor = ray.get_actor(name, namespace="serve")
            found[name] = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return found


def replicas() -> list[str]:
    """Names of the replicas that live."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["name"].startswith(f"SERVE_REPLICA::{APP}#")]


@asynccontextmanager
async def load() -> AsyncIterator[Counter[int]]:
    """Clients in a closed loop; statuses of their answers so far."""
    statuses: Counter[int] = Counter()
    handle = serve.get_app_handle(APP)

    async def client(number: int) -> None:
        while True:
            reply = await HandleTarget(handle).send([number + 1] * 20, 1, lambda: None)
            statuses[reply.status] += 1

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    async with asyncio.timeout(PATIENCE_S):
        while statuses.total() < CLIENTS:
            await asyncio.sleep(0.05)
    try:
        yield statuses
        for task in clients:
            assert not task.done(), task.exception()
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def test_each_replica_has_devices_of_its_own(run: Run, config: ServeConfig) -> None:
    """Both answer as soon as Serve says that they run, and one tells how busy the devices of both are."""
    handle = serve.get_app_handle(config.name)

    async def ask() -> tuple[set[int], list[str]]:
        answers = [await HandleTarget(handle).send([5], 1, lambda: None) for _ in range(8)]
        return {answer.status for answer in answers}, sorted(await handle.duty.remote())

    devices = ["two:1:attention:0", "two:1:moe:0", "two:attention:0", "two:moe:0"]
    assert (run(ask()), sorted(running_in_app(APP))) == (({200}, devices), devices)


def test_a_killed_replicas_devices_are_taken_over(run: Run, config: ServeConfig) -> None:
    """SIGKILL of one of two: its successor finds the devices that it left, and none is loaded again."""
    devices, (victim, other) = pids(running_in_app(config.name)), replicas()

    async def kill() -> None:
        os.kill(pids([victim])[victim], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while len(replicas()) < 2 or victim in replicas():
                await asyncio.sleep(0.1)
            while serve.status().applications[APP].deployments["Frontend"].status != "HEALTHY":
                await asyncio.sleep(0.1)

    run(kill())

    assert (pids(running_in_app(APP)), other in replicas()) == (devices, True)


def test_a_changed_configuration_is_rolled_out_without_a_failed_request(run: Run, config: ServeConfig) -> None:
    """One replica after the other is replaced, with its devices, while the other serves."""
    before = set(pids(running_in_app(APP)).values())
    changed = dataclasses.replace(config, prefill=dataclasses.replace(config.prefill, inflection_tokens=16))

    async def roll() -> Counter[int]:
        async with load() as statuses:
            await asyncio.to_thread(deploy, changed)
            async with asyncio.timeout(PATIENCE_S):
                while before & set(await asyncio.to_thread(lambda: pids(running_in_app(APP)).values())):
                    await asyncio.sleep(0.2)
            return statuses

    statuses = run(roll())

    assert set(statuses) == {200}
    assert len(running_in_app(APP)) == 4


def test_what_a_single_replica_runs_is_finished_when_it_is_replaced(
    run: Run, cluster: None, make_config: Callable[..., ServeConfig]
) -> None:
    """Its successor waits for devices that are free, of which there are no others, and leaves the old ones alone."""
    assert cluster is None
    first = make_config("one", 1, 1, 1)
    changed = dataclasses.replace(first, prefill=dataclasses.replace(first.prefill, inflection_tokens=16))
    has_begun = asyncio.Event()

    async def redeploy() -> int:
        handle = serve.get_app_handle(first.name)
        while (await HandleTarget(handle).send([5], 1, lambda: None)).status != 200:
            await asyncio.sleep(0.1)
        answer = asyncio.create_task(HandleTarget(handle).send([5] * 100, 200, has_begun.set))
        await has_begun.wait()
        await asyncio.to_thread(serve.run, build_app(config_to(changed)), name=first.name, route_prefix=None)
        return (await answer).status

    free = int(ray.available_resources()["NPU"]) - first.parallel.num_devices
    others = placement_group([{"NPU": free}])
    ray.get(others.ready())
    serve.run(build_app(config_to(first)), name=first.name, route_prefix=None)
    try:
        assert run(redeploy()) == 200
    finally:
        serve.delete(first.name)
        remove_placement_group(others)
