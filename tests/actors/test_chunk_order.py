"""Chunks come to a group in any order and go in in theirs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from asap_ray.actors.chunk_order import ChunkOrder
from asap_ray.batch import Batch, Request
from asap_ray.errors import PeerTimeout

PROMPT = Request(request_id="long", num_tokens=30, arrival_s=0.0)
FIRST, SECOND, LAST = (Batch((PROMPT.chunk(start, start + 10),)) for start in (0, 10, 20))
SHORT = Batch((Request(request_id="short", num_tokens=5, arrival_s=0.0),))


class Group:
    """A door without a group, and the frontends that have not gone."""

    def __init__(self, deadline_s: float = 60.0) -> None:
        self.batches: list[Batch] = []
        self.here = {"frontend"}
        self.order = ChunkOrder(self.batches.append, lambda name: name in self.here, deadline_s)

    async def put(self, *batches: Batch, frontend: str = "frontend") -> None:
        """All at once, as concurrent calls."""
        await asyncio.gather(*(self.order.put(frontend, batch) for batch in batches))


def test_a_chunk_that_comes_early_waits_for_the_one_before_it() -> None:
    """The calls overtook each other; what is no chunk of the prompt does not wait."""
    group = Group()

    asyncio.run(group.put(LAST, SECOND, SHORT, FIRST))

    assert group.batches == [SHORT, FIRST, SECOND, LAST]


def test_a_prompt_that_starts_over_begins_anew() -> None:
    """Its first chunk needs nothing, and the second goes on from it."""
    group = Group()

    asyncio.run(group.put(FIRST, SECOND, FIRST, SECOND))

    assert [batch.requests[0].past_tokens for batch in group.batches] == [0, 10, 0, 10]


def test_a_chunk_whose_predecessor_never_comes_fails_at_the_deadline() -> None:
    """Rather than end the loop of the group."""
    group = Group(deadline_s=0.01)

    with pytest.raises(PeerTimeout, match="tokens 20 and on of prompt 'long': those before them did not come"):
        asyncio.run(group.put(FIRST, LAST))

    assert group.batches == [FIRST]


def test_nothing_goes_on_from_a_forgotten_prompt() -> None:
    """Its keys and values are gone."""
    group = Group(deadline_s=0.01)

    with pytest.raises(PeerTimeout):
        asyncio.run(group.put(FIRST, Batch(SHORT.requests, ("long",)), SECOND))


def test_a_prompt_whose_frontend_is_gone_is_forgotten_with_the_next_batch() -> None:
    """Once; what another frontend has under way stays."""
    group = Group()
    group.here = {"killed", "old", "new"}
    others = Request(request_id="other", num_tokens=30, arrival_s=0.0)

    async def scenario() -> None:
        await group.put(FIRST, frontend="killed")
        await group.put(Batch((others.chunk(0, 10),)), frontend="old")
        group.here.remove("killed")
        await group.put(SHORT, SHORT, frontend="new")
        await group.put(Batch((others.chunk(10, 30),)), frontend="old")

    asyncio.run(scenario())

    assert [batch.forget for batch in group.batches] == [(), (), ("long",), (), ()]


def test_what_a_frontend_lost_sight_of_is_forgotten_with_its_next_batch() -> None:
    """It took the group for lost, though it had only failed a batch; what it begins in the same batch is kept."""
    group = Group()
    again, further = (replace(batch, cache_life=1) for batch in (FIRST, SECOND))
    other = Request(request_id="other", num_tokens=30, arrival_s=0.0).chunk(0, 10)

    asyncio.run(group.put(FIRST, Batch((other,)), again, further))

    assert [batch.forget for batch in group.batches] == [(), (), ("long", "other"), ()]


def test_no_chunk_goes_on_from_one_before_the_loss() -> None:
    """The calls overtook each other: the second chunk has the right place, but in the blocks of the life before."""
    group = Group()
    again, further = (replace(batch, cache_life=1) for batch in (FIRST, SECOND))

    asyncio.run(group.put(FIRST, further, again))

    assert [(batch.cache_life, batch.requests[0].past_tokens) for batch in group.batches] == [(0, 0), (1, 0), (1, 10)]


def test_the_first_piece_behind_a_cached_prefix_waits_for_nobody() -> None:
    """What is before it is in pages; the next one waits for it."""
    group = Group()
    hit = Request(request_id="hit", num_tokens=10, arrival_s=0.0, past_tokens=64, table=(0, 1), cached_tokens=64)
    first, last = replace(hit, future_tokens=10), replace(hit, past_tokens=74)

    asyncio.run(group.put(Batch((last,)), Batch((first,))))

    assert group.batches == [Batch((first,)), Batch((last,))]
