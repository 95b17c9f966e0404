"""Instances as Ray actors: they come up, answer as the reference does, and go without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group_table
from transformers import AutoModelForCausalLM

from asap_ray.actors.lease import end_instance
from asap_ray.actors.placement import device_names, group_names, running_names
from asap_ray.actors.prefill_instance import PrefillInstance, agree
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Batch, Request, Sampling
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, DeviceLost
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.messages import Registration, Registrations, decode
from asap_ray.scheduler.policies import POLICIES

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
MakeConfig = Callable[..., ServeConfig]

PROMPTS = [[5], [7, 8, 9, 10, 11], list(range(20, 84)), [3] * 129, list(range(1, 257))]
"""One token, a few, half a batch, a solo batch (limit 128), and exactly the limit (256)."""


def request(index: int) -> Request:
    """Prompt `index` as a request."""
    ids = torch.tensor(PROMPTS[index], dtype=torch.int32)
    return Request(request_id=f"r{index}", num_tokens=len(ids), arrival_s=0.0, token_ids=ids.numpy().tobytes())


async def first_tokens(instance: PrefillInstance, group: int) -> dict[str, int]:
    """The first token of every prompt, from one group: two prompts share a batch, all are sent at once."""
    batches = [Batch((request(0), request(1))), *[Batch((request(n),)) for n in (2, 3, 4)]]

    async def ask(batch: Batch) -> dict[str, int]:
        return {t.request_id: t.token_id async for tokens, _ in instance.run(group, batch) for t in tokens}

    answers: dict[str, int] = {}
    for answer in await asyncio.gather(*map(ask, batches)):
        answers |= answer
    return answers


async def long_answer(instance: PrefillInstance) -> None:
    """A request that decodes for longer than any test."""
    async for _ in instance.run(0, Batch((dataclasses.replace(request(2), sampling=Sampling(max_tokens=4000)),))):
        pass


async def pids(config: ServeConfig) -> list[int]:
    """The processes of an instance's actors."""
    actors = [ray.get_actor(name, namespace="serve") for name in running_names(config.name)]
    return [await actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors]


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> dict[str, int]:
    """Greedy first tokens by transformers."""
    return {f"r{n}": first_token(tiny_model, ids) for n, ids in enumerate(PROMPTS)}


def first_token(model: Path, ids: list[int]) -> int:
    """Of one prompt, by transformers."""
    undivided = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        return int(undivided(torch.tensor([ids])).logits[0, -1].argmax())


@pytest.mark.parametrize(
    ("dp_groups", "tp", "moe_devices"), [(3, 2, 2), pytest.param(1, 1, 3, marks=pytest.mark.thorough)]
)
def test_any_degrees_answer_as_transformers(
    run: Run, make_config: MakeConfig, reference: dict[str, int], dp_groups: int, tp: int, moe_devices: int
) -> None:
    """Every group gives transformers' first token for every prompt, whatever D, T and E."""
    instance = PrefillInstance(make_config("any", dp_groups, tp, moe_devices))

    async def ask_all() -> list[dict[str, int]]:
        await instance.start()
        try:
            return [await first_tokens(instance, group) for group in range(dp_groups)]
        finally:
            await instance.stop()

    assert run(ask_all()) == [reference] * dp_groups


def test_a_cached_prefix_answers_as_transformers(run: Run, make_config: MakeConfig, reference: dict[str, int]) -> None:
    """Two blocks of a prompt in the pages of both ranks, which say how many blocks they have and where these lie."""
    config = make_config("pages", 1, 2, 1)
    instance, whole = PrefillInstance(config), request(3)
    cold = dataclasses.replace(whole, request_id="cold", table=(7, 0, 5))
    hit = dataclasses.replace(whole, table=(7, 0, 3)).behind(128)

    async def ask_both() -> tuple[list[int], list[Registration], list[torch.Tensor]]:
        await instance.start()
        try:
            answers = [
                token.token_id
                for prompt in (cold, hit)
                async for tokens, _ in instance.run(0, Batch((prompt,)))
                for token in tokens
            ]
            group = ray.get_actor(group_names(config)[0], namespace="serve")
            ranks = decode(Registrations, await group.register.remote()).devices
            return answers, list(ranks), [last_key(rank) for rank in ranks]
        finally:
            await instance.stop()

    answers, ranks, keys = run(ask_both())

    assert answers == [reference["r3"]] * 2
    assert all(rank.num_blocks == rank.pages.num_blocks > 8 for rank in ranks if rank.pages)
    assert all(key.any() for key in keys)


def last_key(rank: Registration) -> torch.Tensor:
    """What another process finds in a rank's pages of the last token of the prompt with a hit, [G, W]."""
    pages = rank.pages
    assert pages
    memory = PageMemory.open(pages.pid, pages.fd, pages.num_bytes)
    storage = Storage(pages.spec, pages.num_blocks, memory.bytes)
    return storage.pages(pages.spec.kinds[0].name)[-1, 3, :, 0].clone()


def test_a_prompt_in_chunks_answers_as_transformers(
    run: Run, make_config: MakeConfig, reference: dict[str, int]
) -> None:
    """Sent at once and in the wrong order: the first is one pass without a token, the second has the prompt's."""
    instance = PrefillInstance(make_config("chunks", 1, 2, 1))

    async def ask(start: int, stop: int) -> list[tuple[int, ...]]:
        batch = Batch((request(3).chunk(start, stop),))
        return [tuple(token.token_id for token in tokens) async for tokens, _ in instance.run(0, batch)]

    async def ask_both() -> list[Any]:
        await instance.start()
        try:
            return await asyncio.gather(ask(100, 129), ask(0, 100))
        finally:
            await instance.stop()

    assert run(ask_both()) == [[(reference["r3"],)], [()]]


def test_every_rank_forgets_an_abandoned_prompt(run: Run, make_config: MakeConfig) -> None:
    """The batch that says so reaches both ranks of a group; before it they keep its keys and values."""
    config = make_config("forgetful", 1, 2, 1)
    instance = PrefillInstance(config)

    async def kept() -> list[int]:
        leader = ray.get_actor(group_names(config)[0], namespace="serve")
        return await leader.__ray_call__.remote(kept_by_rank)

    async def abandon() -> list[list[int]]:
        await instance.start()
        try:
            counts = []
            for batch in (Batch((request(3).chunk(0, 100),)), Batch((request(0),), forget=("r3",))):
                async for _ in instance.run(0, batch):
                    pass
                counts.append(await kept())
            return counts
        finally:
            await instance.stop()

    assert run(abandon()) == [[1, 1], [0, 0]]


def kept_by_rank(group: Any) -> list[int]:
    """Prompts whose keys and values each rank of a group keeps; runs in the group's actor."""

    def num_kept(rank: Any) -> int:
        return rank._attention.stage.num_kept

    others = [ray.get(follower.__ray_call__.remote(num_kept)) for follower in group._followers]
    return [num_kept(group._rank), *others]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_as_transformers(
    run: Run, make_config: MakeConfig, reference: dict[str, int], policy: str
) -> None:
    """All prompts at once, through the scheduler: a turn has 96 tokens, so those of 129 and 256 run in pieces.

    The second time all full blocks of 64 tokens but the last token's are in the cache.
    """
    config = dataclasses.replace(make_config(policy, 1, 2, 1), policy=policy)
    instance = PrefillInstance(config)

    async def ask_all_twice() -> list[dict[str, tuple[int, int]]]:
        await instance.start()
        service = PrefillService(config, served_model(config), instance)
        service.open_caches()
        requests = [request(index) for index in range(len(PROMPTS))]
        again = [dataclasses.replace(each, request_id=f"{each.request_id} again") for each in requests]
        try:
            return [
                {each.token.request_id[:2]: (each.token.token_id, each.cached_tokens) async for each in answers}
                for answers in map(service.generate, (requests, again))
            ]
        finally:
            await service.close()
            await instance.stop()

    cold, hit = run(ask_all_twice())

    assert {name: token for name, (token, _) in cold.items()} == reference
    assert {name: token for name, (token, _) in hit.items()} == reference
    assert [cached for _, cached in hit.values()] == [(len(ids) - 1) // 64 * 64 for ids in PROMPTS]


def test_a_prompt_longer_than_a_batch_answers_as_transformers(
    run: Run, make_config: MakeConfig, tiny_model: Path
) -> None:
    """1000 tokens with batches of at most 256, on two ranks: eleven pieces of a turn."""
    config = dataclasses.replace(make_config("long", 1, 2, 1), policy="asap")
    instance, ids = PrefillInstance(config), [(7 * n) % 250 for n in range(1000)]
    packed = torch.tensor(ids, dtype=torch.int32).numpy().tobytes()
    long = Request(request_id="long", num_tokens=len(ids), arrival_s=0.0, token_ids=packed)

    async def ask() -> list[int]:
        await instance.start()
        service = PrefillService(config, served_model(config), instance)
        service.open_caches()
        try:
            return [event.token.token_id async for event in service.generate([long])]
        finally:
            await service.close()
            await instance.stop()

    assert run(ask()) == [first_token(tiny_model, ids)]


def test_a_stopped_instance_leaves_nothing(run: Run, make_config: MakeConfig) -> None:
    """No actor and no placement group survives `stop`."""
    config = make_config("gone", 1, 1, 1)
    instance = PrefillInstance(config)

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
        first, second = PrefillInstance(config), PrefillInstance(config)
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
    instance = PrefillInstance(config)

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
        old, new = PrefillInstance(config), PrefillInstance(config)
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
        old, new = PrefillInstance(config), PrefillInstance(changed)
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
        await PrefillInstance(config).start()
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
    first, second = PrefillInstance(make_config("holder", 2, 1, 3)), PrefillInstance(make_config("waiter", 2, 1, 3))

    async def give_up() -> list[str]:
        await first.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.start(), 1.0)
        await second.stop()
        await first.stop()
        return [each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED"]

    assert run(give_up()) == []


def test_the_handshake_names_two_that_differ() -> None:
    """Devices that loaded another model do not join, and the field is named with both values."""
    ours, theirs = (
        Registration(
            role="moe", index=0, tp_rank=0, pid=1, fd=2, num_bytes=3, epoch=4, node="n", fingerprint={"model": model}
        )
        for model in ("a", "b")
    )

    with pytest.raises(ConfigError, match="x:moe:0 and x:moe:1 differ in model: a and b"):
        agree({"x:moe:0": ours, "x:moe:1": theirs})


@pytest.mark.parametrize("link", [b"", b"there"])
def test_devices_of_two_nodes_need_links(link: bytes) -> None:
    """Shared memory ends with the node; what is missing is named."""
    what = {"role": "moe", "index": 0, "tp_rank": 0, "pid": 1, "fd": 2, "num_bytes": 3, "epoch": 4, "fingerprint": {}}
    pair = {f"x:moe:{node}": Registration(node=node, link=link, **what) for node in ("a", "b")}

    with contextlib.nullcontext() if link else pytest.raises(ConfigError, match=r"differ in node: a and b; .*\[nixl\]"):
        agree(pair)


def test_too_few_devices_are_said_at_once(run: Run, make_config: MakeConfig) -> None:
    """A cluster that cannot hold the instance is told apart from one that is busy."""
    with pytest.raises(ConfigError, match=r"needs 11 NPU .* the cluster has 8"):
        run(PrefillInstance(make_config("big", 4, 2, 3)).start())


@pytest.mark.thorough
def test_devices_that_are_taken_are_waited_for_only_so_long(run: Run, make_config: MakeConfig) -> None:
    """A second instance that does not fit beside the first gives up, names the shortage and leaves nothing."""
    first = PrefillInstance(make_config("first", 2, 1, 3))
    second = PrefillInstance(dataclasses.replace(make_config("second", 2, 1, 3), start_timeout_s=1.0))

    async def both() -> None:
        await first.start()
        try:
            await second.start()
        finally:
            await first.stop()

    with pytest.raises(ConfigError, match=r"5 NPU were not free within 1.0 s: 3 of the cluster's 8 are free"):
        run(both())
