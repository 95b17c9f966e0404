"""Long prompts in pieces, served: whatever happens between two pieces, the client hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost, Unavailable
from tests.http.asking import queue, request, tokens_of
from tests.http.echo_groups import EchoGroups

PATIENCE_S = 10.0
"""Only a test that fails waits so long."""


@dataclass
class SteppedGroups(EchoGroups):
    """Groups whose batches end when they are told to, each by itself."""

    ends: list[asyncio.Future[None]] = field(default_factory=list)
    handed: asyncio.Queue[list[int]] = field(default_factory=asyncio.Queue)

    async def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """See `Groups`."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        self.handed.put_nowait([each.past_tokens + each.num_tokens for each in batch.requests])
        await end
        async for passed in super().run(group, batch):
            yield passed

    async def next(self) -> list[int]:
        """Where the pieces of the next batch end; it is in the hands of its group now."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.handed.get()

    def end(self, number: int) -> None:
        """Let a batch run, by its place in the order of hand-over."""
        self.ends[number].set_result(None)


@pytest.fixture
def config(config: ServeConfig) -> ServeConfig:
    """Prompts of at most 96 tokens: a turn is 32, so that is three pieces."""
    return replace(config, policy="asap", prefill=replace(config.prefill, max_tokens=96))


async def answered(client: asyncio.Task[object]) -> object:
    """What a client got."""
    async with asyncio.timeout(PATIENCE_S):
        return await client


def test_a_group_lost_between_pieces_starts_the_prompt_over(config: ServeConfig, model: ServedModel) -> None:
    """Its keys and values are gone with the group: all three pieces run on the other one, and the answer is whole."""

    async def scenario() -> tuple[list[list[int]], object]:
        groups = SteppedGroups(num_groups=2)
        service = PrefillService(config, model, groups)
        long = await queue(service, "long", 96)
        for name in ("other", "another"):  # both slots of group 1
            await queue(service, name, 32)
        assert [await groups.next() for _ in range(4)] == [[32], [64], [32], [32]]
        groups.end(0)
        assert await groups.next() == [96]
        groups.ends[4].set_exception(DeviceLost("gone"))
        groups.end(2)
        groups.end(3)
        again = [await groups.next() for _ in range(2)]
        groups.end(5)
        again.append(await groups.next())
        groups.end(6)
        groups.end(7)
        return again, await answered(long)

    pieces, tokens = asyncio.run(scenario())
    assert (pieces, [event.token.token_id for event in tokens]) == ([[32], [64], [96]], [7])


def test_stopping_finishes_a_prompt_whose_pieces_are_under_way(config: ServeConfig, model: ServedModel) -> None:
    """SIGTERM between two pieces: the third is handed over all the same, what has not begun is not."""

    async def scenario() -> list[object]:
        groups = SteppedGroups(num_groups=1)
        service = PrefillService(config, model, groups)
        long, queued = await queue(service, "long", 96), await queue(service, "queued", 96)
        assert [await groups.next() for _ in range(2)] == [[32], [64]]
        closing = asyncio.create_task(service.close())
        groups.end(0)
        groups.end(1)
        assert await groups.next() == [96]
        groups.end(2)
        await closing
        return await asyncio.gather(long, queued, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(scenario())] == [list, Unavailable]


def test_after_the_deadline_of_stopping_nothing_is_handed_over(config: ServeConfig, model: ServedModel) -> None:
    """The prompt fails, and its third piece stays where it is although its slot is free."""

    async def scenario() -> tuple[object, int]:
        groups = SteppedGroups(num_groups=1)
        service = PrefillService(replace(config, prefill=replace(config.prefill, deadline_s=0.01)), model, groups)
        long = await queue(service, "long", 96)
        await groups.next()
        await service.close()
        (outcome,) = await asyncio.gather(long, return_exceptions=True)
        return type(outcome), len(groups.ends)

    assert asyncio.run(scenario()) == (Unavailable, 2)


def test_a_client_that_leaves_between_pieces_takes_the_rest_along(config: ServeConfig, model: ServedModel) -> None:
    """What runs finishes; the next batch runs instead of the third piece, and tells the group to forget the prompt."""

    async def scenario() -> tuple[list[int], tuple[str, ...]]:
        groups = SteppedGroups(num_groups=1)
        service = PrefillService(config, model, groups)
        long = await queue(service, "long", 96)
        assert [await groups.next() for _ in range(2)] == [[32], [64]]
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        groups.end(0)
        groups.end(1)
        while groups.num_finished < 2:
            await asyncio.sleep(0)
        staying = await queue(service, "staying")
        batch = await groups.next()
        groups.end(2)
        await answered(staying)
        return batch, groups.batches[-1].forget

    assert asyncio.run(scenario()) == ([20], ("long",))


def test_the_queue_of_a_cut_prompt_ends_with_its_first_piece(config: ServeConfig, model: ServedModel) -> None:
    """`queue_s` is the wait for the first piece; the other parts are the sums over all three."""

    async def scenario() -> None:
        groups = SteppedGroups(num_groups=1)
        service = PrefillService(config, model, groups)
        arrival_s = time.monotonic()
        client = asyncio.create_task(tokens_of(service, [request("long", 96, arrival_s=arrival_s)]))
        await groups.next()
        handed_s = time.monotonic()
        for number in range(3):
            if number:
                await groups.next()
            groups.end(number)
        ttft = (await client)[0].ttft
        assert ttft.queue_s <= handed_s - arrival_s < ttft.total_s
        assert (ttft.attention_s, ttft.dispatch_s, ttft.combine_s) == (0.75, 0.375, 1.5)

    asyncio.run(scenario())
