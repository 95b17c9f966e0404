"""Instances as Ray actors: they come up, take over, and go without a trace."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal

import pytest
import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group_table

from asap_ray.actors.lease import end_instance
from asap_ray.actors.placement import device_names, running_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.batch import Batch, Sampling
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, DeviceLost
from tests.actors.prompts import PROMPTS, MakeConfig, Run, first_tokens, instance_of, request

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


async def long_answer(instance: PrefillInstance) -> None:
    """A request that decodes for longer than any test."""
    async for _ in instance.run(0, Batch((dataclasses.replace(request(2), sampling=Sampling(max_tokens=4000)),))):
        pass


async def pids(config: ServeConfig) -> list[int]:
    """The processes of an instance's actors."""
    actors = [ray.get_actor(name, namespace="serve") for name in running_names(config.name)]
    return [await actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors]


def test_a_stopped_instance_leaves_nothing(run: Run, make_config: MakeConfig) -> None:
    """No actor and no placement group survives `stop`."""
    config = make_config("gone", 1, 1, 1)
    instance = instance_of(config)

    async def come_and_go() -> None:
        await instance.start()
        await instance.stop()

    run(come_and_go())

    groups = [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
    assert (running_names(config.name), groups) == ([], [])


def test_a_second_frontend_attaches_without_loading_again(run: Run, make_config: MakeConfig) -> None:
    """The actors outlive their frontend: the next one finds the same processes."""
    config = make_config("again", 1, 1, 2)

    async def attach_twice() -> tuple[list[int], list[int]]:
        first, second = instance_of(config), instance_of(config)
        await first.start()
        before = await pids(config)
        await second.start()
        after = await pids(config)
        await first.stop()
        await second.stop()
        return before, after

    before, after = run(attach_twice())
    assert before == after


def test_a_device_lost_for_good_is_named_and_nobody_waits_for_it(
    run: Run, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of a MoE device once too often: `watch` names it; what runs and what comes later fails, and soon."""
    monkeypatch.setattr("asap_ray.actors.losses.MAX_RESTARTS", 0)
    config = make_config("lossy", 1, 1, 2)
    instance = instance_of(config)

    async def watch() -> None:
        async for _ in instance.watch():
            pass

    async def lose_one() -> str:
        await instance.start()
        running = asyncio.create_task(long_answer(instance))
        device = ray.get_actor(device_names(config)[1], namespace="serve")
        os.kill(await device.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)
        try:
            with pytest.raises(DeviceLost, match=device_names(config)[1]):
                await asyncio.wait_for(watch(), 30)
            for doomed in (running, first_tokens(instance, 0)):  # what ran, and what comes too late
                with pytest.raises(DeviceLost):
                    await asyncio.wait_for(doomed, 30)
            return instance.missing()[0]
        finally:
            await instance.stop()

    assert run(lose_one()).startswith(device_names(config)[1])


@pytest.mark.thorough
def test_a_leaving_frontend_does_not_end_what_another_uses(run: Run, make_config: MakeConfig) -> None:
    """The old frontend of a redeploy drains beside the new one; its end must not take the devices along."""
    config = make_config("shared", 1, 1, 1)

    async def leave_one_by_one() -> tuple[bool, list[str]]:
        old, new = instance_of(config), instance_of(config)
        await old.start()
        await new.start()
        await old.stop()
        alive = len(await first_tokens(new, 0)) == len(PROMPTS)
        await new.stop()
        return alive, running_names(config.name)

    assert run(leave_one_by_one()) == (True, [])


@pytest.mark.thorough
def test_a_replaced_frontend_does_not_end_its_successors_devices(run: Run, make_config: MakeConfig) -> None:
    """When a redeploy with other settings has replaced all devices, the old one leaves the new devices alone."""
    config = make_config("replaced", 1, 1, 1)
    changed = dataclasses.replace(config, prefill=dataclasses.replace(config.prefill, inflection_tokens=16))

    async def replace_then_leave() -> bool:
        old, new = instance_of(config), instance_of(changed)
        await old.start()
        await new.start()
        await old.stop()
        alive = len(await first_tokens(new, 0)) == len(PROMPTS)
        await new.stop()
        return alive

    assert run(replace_then_leave())


@pytest.mark.thorough
def test_an_orphaned_device_ends_the_whole_instance(run: Run, make_config: MakeConfig) -> None:
    """What a lease does when it runs out: every actor goes, and the devices are free again."""
    config = make_config("orphan", 1, 1, 1)

    async def end() -> list[str]:
        await instance_of(config).start()
        device = ray.get_actor(device_names(config)[0], namespace="serve")
        with pytest.raises(RayActorError):  # it ends itself in the middle of the call
            await device.__ray_call__.remote(lambda _: end_instance())
        async with asyncio.timeout(30):
            while running_names(config.name):
                await asyncio.sleep(0.1)
        return running_names(config.name)

    assert run(end()) == []


@pytest.mark.thorough
def test_a_start_that_is_given_up_asks_for_nothing_any_more(run: Run, make_config: MakeConfig) -> None:
    """Cancelled while it waits for devices: the places it asked for are not taken later."""
    first, second = instance_of(make_config("holder", 2, 1, 3)), instance_of(make_config("waiter", 2, 1, 3))

    async def give_up() -> list[str]:
        await first.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.start(), 1.0)
        await second.stop()
        await first.stop()
        return [each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED"]

    assert run(give_up()) == []


def test_too_few_devices_are_said_at_once(run: Run, make_config: MakeConfig) -> None:
    """A cluster that cannot hold the instance is told apart from one that is busy."""
    with pytest.raises(ConfigError, match=r"needs 11 NPU .* the cluster has 8"):
        run(instance_of(make_config("big", 4, 2, 3)).start())


@pytest.mark.thorough
def test_devices_that_are_taken_are_waited_for_only_so_long(run: Run, make_config: MakeConfig) -> None:
    """A second instance that does not fit beside the first gives up, names the shortage and leaves nothing."""
    first = instance_of(make_config("first", 2, 1, 3))
    second = instance_of(dataclasses.replace(make_config("second", 2, 1, 3), start_timeout_s=1.0))

    async def both() -> None:
        await first.start()
        try:
            await second.start()
        finally:
            await first.stop()

    with pytest.raises(ConfigError, match=r"5 NPU were not free within 1.0 s: 3 of the cluster's 8 are free"):
        run(both())
