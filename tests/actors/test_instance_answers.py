"""Instances as Ray actors answer as the reference does, whatever their shape."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from asap_ray.actors.placement import group_names
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Batch, Request, Sampling
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.messages import Registration, Registrations, decode
from asap_ray.scheduler.policies import POLICIES
from tests.actors.prompts import PROMPTS, MakeConfig, Run, first_token, first_tokens, instance_of, request

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> dict[str, int]:
    """Greedy first tokens by transformers."""
    return {f"r{n}": first_token(tiny_model, ids) for n, ids in enumerate(PROMPTS)}


@pytest.mark.parametrize(
    ("dp_groups", "tp", "moe_devices"), [(3, 2, 2), pytest.param(1, 1, 3, marks=pytest.mark.thorough)]
)
def test_any_degrees_answer_as_transformers(
    run: Run, make_config: MakeConfig, reference: dict[str, int], dp_groups: int, tp: int, moe_devices: int
) -> None:
    """Every group gives transformers' first token for every prompt, whatever D, T and E."""
    instance = instance_of(make_config("any", dp_groups, tp, moe_devices))

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
    instance, whole = instance_of(config), request(3)
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
    instance = instance_of(make_config("chunks", 1, 2, 1))

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
    instance = instance_of(config)

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


def test_a_decode_that_nobody_waits_for_ends_on_every_rank(
    run: Run, make_config: MakeConfig, reference: dict[str, int]
) -> None:
    """A client leaves after 3 of 200 tokens: slot and blocks are free, and the two ranks answer a solo prompt next."""
    config = make_config("left", 1, 2, 1)
    instance = instance_of(config)

    async def leave() -> tuple[float, int, list[int]]:
        await instance.start()
        service = PrefillService(config, served_model(config), instance)
        service.open_caches()
        answers = service.generate([dataclasses.replace(request(1), sampling=Sampling(max_tokens=200))])
        try:
            for _ in range(3):
                await anext(answers)
            await answers.aclose()
            solo = [event.token.token_id async for event in service.generate([request(3)])]
            await service.close()  # the end of a batch comes behind its last token
            exposed = service.metrics.exposition().decode().splitlines()
            (made,) = (line for line in exposed if line.startswith("vllm:generation_tokens_total{"))
            return float(made.rpartition(" ")[2]), service._scheduler.caches[0].num_held, solo
        finally:
            await instance.stop()

    num_made, num_held, solo = run(leave())

    assert (num_held, solo) == (0, [reference["r3"]])
    assert num_made < 100


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
    instance = instance_of(config)

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
    instance, ids = instance_of(config), [(7 * n) % 250 for n in range(1000)]
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
