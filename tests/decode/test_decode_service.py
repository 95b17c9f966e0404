"""A decode instance goes on where a prefill instance ended."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from asap_ray.actors.decode_service import PullCounts
from asap_ray.actors.waiter import TokenEvent
from asap_ray.errors import RequestError, Unavailable
from asap_ray.kvcache.handoff import LeaseCounts
from asap_ray.kvcache.transfer_params import RemoteDecode
from tests.decode.conftest import Decoding
from tests.decode.prefilled import Prefilled, answer, events_of, prompt


def prompts(number: int, vocab_size: int = 512) -> list[list[int]]:
    """Of 1 to 100 tokens; half of them begin as another one does."""
    draw = random.Random(number)
    shared = [draw.randrange(vocab_size) for _ in range(48)]
    return [
        [
            *(shared if n % 2 else ()),
            *(draw.randrange(vocab_size) for _ in range(1 if n < 2 else draw.randrange(1, 52))),
        ]
        for n in range(number)
    ]


async def pair_answers(directory: Path, decoding: Decoding, number: int) -> tuple[list[bool], int, PullCounts, int]:
    """Which prompts a pair answers as one model does; prefix hits, pulls, and blocks that stay held."""
    async with Prefilled(directory, num_blocks=256) as prefill, decoding(256) as decode:
        same = []
        for n, ids in enumerate(prompts(number)):
            alone = await answer(decode, prompt(ids, name=f"alone-{n}"))
            params = prefill.handed_off(prompt(ids, name=f"pair-{n}"))
            same.append(await answer(decode, prompt(ids, name=f"pair-{n}"), params) == alone)
        return same, prefill.cache.counts.hit_tokens, decode.counts, prefill.cache.num_held


def test_a_pair_answers_as_one_model(tiny_model: Path, decoding: Decoding) -> None:
    """64 tokens each, one token of a prompt and prefix hits included; nothing stays held."""
    same, hit_tokens, counts, num_held = asyncio.run(pair_answers(tiny_model, decoding, 8))

    assert same == [True] * 8
    assert hit_tokens == 3 * 48
    assert (counts, num_held) == (PullCounts(pulled=8, computed=8), 0)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_pair_answers_a_hundred_prompts_as_one_model(tiny_model: Path, decoding: Decoding) -> None:
    """The same, of a hundred."""
    same, _, counts, num_held = asyncio.run(pair_answers(tiny_model, decoding, 100))

    assert same == [True] * 100
    assert (counts.pulled, num_held) == (100, 0)


def test_corrupted_pages_change_tokens(tiny_model: Path, decoding: Decoding) -> None:
    """So they are used."""

    async def tokens() -> tuple[list[int], list[int]]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            ids = prompts(8)[3]
            params = prefill.handed_off(prompt(ids))
            prefill.memory.bytes.zero_()
            return await answer(decode, prompt(ids), params), await answer(decode, prompt(ids, name="alone"))

    pulled, alone = asyncio.run(tokens())

    assert pulled != alone


def test_usage_counts_what_was_pulled_as_cached(tiny_model: Path, decoding: Decoding) -> None:
    """All but the last token, with the first event."""

    async def cached() -> list[int]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            request = prompt([5] * 40, max_tokens=2)
            return [e.cached_tokens for e in await events_of(decode, request, prefill.handed_off(request))]

    assert asyncio.run(cached()) == [39, 0]


def test_a_lease_that_has_ended_is_no_failure(tiny_model: Path, decoding: Decoding) -> None:
    """The decode instance computes the prompt itself."""

    async def tokens() -> tuple[list[int], list[int], PullCounts]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            request = prompt([7, 8, 9] * 9)
            params = prefill.handed_off(request)
            prefill.hand_off.expire(float("inf"))
            late = await answer(decode, request, params)
            return late, await answer(decode, prompt([7, 8, 9] * 9, name="alone")), decode.counts

    late, alone, counts = asyncio.run(tokens())

    assert late == alone
    assert counts == PullCounts(failed=1, computed=1)


def test_what_was_read_while_the_lease_ended_is_not_trusted(tiny_model: Path, decoding: Decoding) -> None:
    """Others may have written there meanwhile."""

    async def tokens() -> tuple[list[int], list[int], int]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            request = prompt([7, 8, 9] * 9)
            params = prefill.handed_off(request)
            pull = decode._host.pull

            async def slow_pull(*args: object) -> None:
                prefill.hand_off.expire(float("inf"))
                prefill.memory.bytes.zero_()
                await pull(*args)  # type: ignore[arg-type]

            decode._host.pull = slow_pull  # type: ignore[method-assign]
            late = await answer(decode, request, params)
            return late, await answer(decode, prompt([7, 8, 9] * 9, name="alone")), decode.counts.failed

    late, alone, num_failed = asyncio.run(tokens())

    assert (late, num_failed) == (alone, 1)


def test_a_client_that_leaves_frees_the_blocks_on_both_sides(tiny_model: Path, decoding: Decoding) -> None:
    """The pull under way is aborted."""

    async def leave() -> tuple[LeaseCounts, int, int]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            request = prompt([7, 8, 9] * 9)
            params = prefill.handed_off(request)
            began = asyncio.Event()

            async def endless_pull(*_: object) -> None:
                began.set()
                await asyncio.Event().wait()

            decode._host.pull = endless_pull  # type: ignore[method-assign]
            client = asyncio.create_task(answer(decode, request, params))
            await began.wait()
            client.cancel()
            await asyncio.gather(client, return_exceptions=True)
            pool = decode._host.pool
            return prefill.hand_off.counts, prefill.cache.num_held, pool.num_blocks - pool.num_free

    counts, num_held, num_held_here = asyncio.run(leave())

    assert counts == LeaseCounts(granted=1, aborted=1)
    assert (num_held, num_held_here) == (0, 0)


PULLING = """
import asyncio, json, sys
from asap_ray.actors.remote_lease import RemoteLease
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.transfer_params import RemotePrefill, read_params

async def pull(params):
    async with RemoteLease(params) as lease:
        (pages,) = (await lease.read()).ranks
        mapped = PageMemory.open(pages.pid, pages.fd, pages.num_bytes)
        print("pulling", int(mapped.bytes[0]), flush=True)
        await asyncio.Event().wait()

asyncio.run(pull(read_params(RemotePrefill, json.loads(sys.argv[1]))))
"""
"""A decode side that has the pages mapped, sends heartbeats, and never ends."""


def test_a_decode_instance_killed_in_the_middle_of_a_pull(tiny_model: Path) -> None:
    """Its heartbeats keep the lease beyond its time; after SIGKILL nobody speaks for it, and the lease ends."""

    async def die() -> tuple[int, LeaseCounts, int]:
        async with Prefilled(tiny_model, lease_s=1.0) as prefill:
            params = json.dumps(asdict(prefill.handed_off(prompt([7, 8, 9] * 9))))
            peer = await asyncio.create_subprocess_exec(sys.executable, "-c", PULLING, params, stdout=subprocess.PIPE)
            assert peer.stdout
            assert (await peer.stdout.readline()).startswith(b"pulling")
            granted_s = prefill.hand_off.wake_at()
            while prefill.hand_off.wake_at() == granted_s:
                await prefill.calls.get()
            num_open = prefill.hand_off.totals()["open"]
            peer.kill()
            await peer.wait()
            async with asyncio.timeout(20):
                while prefill.hand_off.totals()["open"]:
                    prefill.hand_off.expire(time.monotonic())
                    await asyncio.sleep(0.05)
            return num_open, prefill.hand_off.counts, prefill.cache.num_held

    assert asyncio.run(die()) == (1, LeaseCounts(granted=1, expired=1), 0)


def test_a_request_that_waits_for_blocks_keeps_its_lease(tiny_model: Path, decoding: Decoding) -> None:
    """By heartbeats, until there is room; who came first gets it first."""

    async def wait() -> tuple[list[str], list[int], list[int]]:
        async with Prefilled(tiny_model, lease_s=0.3) as prefill, decoding(20) as decode:
            blocker = decode.generate([prompt([1], max_tokens=320, name="blocker")])
            await anext(blocker)
            request = prompt([7, 8, 9] * 9, max_tokens=8)
            waiting = asyncio.create_task(answer(decode, request, prefill.handed_off(request)))
            verbs = [(await prefill.calls.get()).verb for _ in range(4)]
            await blocker.aclose()
            return verbs, await waiting, await answer(decode, prompt([7, 8, 9] * 9, max_tokens=8, name="alone"))

    verbs, waited, alone = asyncio.run(wait())

    assert verbs == ["heartbeat"] * 4
    assert waited == alone


def test_a_prompt_that_has_its_stop_string_decodes_no_further(decoding: Decoding) -> None:
    """The other one of the request goes on; the first has one more event, its last."""

    async def ask() -> list[tuple[int, str | None]]:
        async with decoding() as decode:
            heard: dict[str, list[TokenEvent]] = {"cut": [], "whole": []}
            async for event in decode.generate([prompt([n], name=name) for n, name in enumerate(heard, start=1)]):
                heard[event.token.request_id].append(event)
                if len(heard["cut"]) == 3:
                    decode.stop(["cut"])
            return [(len(events), events[-1].token.finish_reason) for events in heard.values()]

    assert asyncio.run(ask()) == [(4, "abort"), (64, "length")]


def test_requests_take_turns(decoding: Decoding) -> None:
    """A short answer is there before a long one that began earlier."""

    async def race() -> tuple[bool, bool]:
        async with decoding() as decode:
            long = asyncio.create_task(answer(decode, prompt([1, 2], max_tokens=200)))
            await answer(decode, prompt([3, 4], max_tokens=2))
            is_done = long.done()
            return is_done, len(await long) == 200

    assert asyncio.run(race()) == (False, True)


def test_nobody_listens_where_the_blocks_should_be(tiny_model: Path, decoding: Decoding) -> None:
    """The prefill instance is gone: the prompt is computed again."""

    async def tokens() -> tuple[int, PullCounts]:
        async with Prefilled(tiny_model) as prefill:
            params = prefill.handed_off(prompt([7, 8, 9]))
        async with decoding() as decode:
            return len(await answer(decode, prompt([7, 8, 9]), params)), decode.counts

    assert asyncio.run(tokens()) == (64, PullCounts(failed=1))


@pytest.mark.parametrize("is_under_way", [False, True])
def test_the_blocks_of_a_dead_group_are_said_to_be_gone(
    tiny_model: Path, decoding: Decoding, is_under_way: bool
) -> None:
    """Before the pull or in the middle of it, and with a successor in its place; the prompt is computed again."""

    async def tokens() -> tuple[list[int], list[int], PullCounts, LeaseCounts]:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            request = prompt([7, 8, 9] * 9)
            params = prefill.handed_off(request)
            pull = decode._host.pull

            async def pull_from_the_dead(*args: object) -> None:
                prefill.replace_group()
                await pull(*args)  # type: ignore[arg-type]

            if is_under_way:
                decode._host.pull = pull_from_the_dead  # type: ignore[method-assign]
            else:
                prefill.replace_group()
            late = await answer(decode, request, params)
            alone = await answer(decode, prompt([7, 8, 9] * 9, name="alone"))
            return late, alone, decode.counts, prefill.hand_off.counts

    late, alone, pulls, leases = asyncio.run(tokens())

    assert late == alone
    assert pulls.failed == 1
    assert leases == LeaseCounts(granted=1, lost=1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (RemoteDecode(do_remote_decode=True), "do_remote_decode=true: this instance decodes; it hands nothing on"),
        ("a token less", "remote_num_tokens=2; the prompt has 3 tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tiny_model: Path, decoding: Decoding, params: RemoteDecode | str, message: str
) -> None:
    """By the name of the field."""

    async def ask() -> None:
        async with Prefilled(tiny_model) as prefill, decoding() as decode:
            transfer = params if isinstance(params, RemoteDecode) else prefill.handed_off(prompt([7, 8]))
            async for _ in decode.generate([prompt([7, 8, 9])], transfer=transfer):
                pass

    with pytest.raises(RequestError, match=message) as caught:
        asyncio.run(ask())

    assert caught.value.param == "kv_transfer_params"


def test_an_answer_that_could_never_fit_is_refused(decoding: Decoding) -> None:
    """With the room there is."""

    async def ask() -> None:
        async with decoding(5) as decode:
            await answer(decode, prompt([7, 8, 9], max_tokens=79))

    with pytest.raises(RequestError, match="have up to 81 tokens; the cache of an attention group holds 80"):
        asyncio.run(ask())


def test_an_instance_that_stops_refuses(decoding: Decoding) -> None:
    """What is here finishes first."""

    async def ask() -> None:
        async with decoding() as decode:
            running = asyncio.create_task(answer(decode, prompt([7, 8, 9])))
            await asyncio.sleep(0)
            await decode.close()
            assert len(await running) == 64
            await answer(decode, prompt([7, 8, 9]))

    with pytest.raises(Unavailable, match="the instance is stopping"):
        asyncio.run(ask())


def test_what_a_router_scrapes(decoding: Decoding) -> None:
    """Requests that run and wait, how full the pages are, and tokens; by vLLM's names."""

    async def scrape() -> dict[str, float]:
        async with decoding(5) as decode:
            running = decode.generate([prompt([1] * 40, max_tokens=20, name="running")])
            for _ in range(2):
                await anext(running)
            waiting = asyncio.create_task(answer(decode, prompt([7], max_tokens=80)))
            await asyncio.sleep(0)
            decode.report()
            lines = decode.metrics.exposition().decode().splitlines()
            await running.aclose()
            await waiting
            samples = [line.rpartition(" ") for line in lines if line.startswith("vllm:")]
            return {name.partition("{")[0]: float(value) for name, _, value in samples}

    samples = asyncio.run(scrape())
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total")

    assert [samples[f"vllm:{name}"] for name in names] == [1, 1, 0.8, 40]
