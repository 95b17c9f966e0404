"""One frontend's blocks at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from asap_ray.actors.page_owner import PageOwner
from asap_ray.batch import Batch, Request, Token
from asap_ray.errors import PeerTimeout, Unavailable

LONG = Request(request_id="long", num_tokens=30, arrival_s=0.0, table=(0, 1))


def batch(name: str = "a") -> Batch:
    """A whole prompt with a block."""
    return Batch((Request(request_id=name, num_tokens=5, arrival_s=0.0, table=(0,)),))


def token(name: str = "a") -> Token:
    """The only one of its answer."""
    return Token(request_id=name, token_id=1, finish_reason="length")


class Case:
    """An owner, and the frontends that are here."""

    def __init__(self, deadline_s: float = 60.0) -> None:
        self.here = {"old", "new"}
        self.aborted: set[str] = set()
        self.owner = PageOwner(lambda name: name in self.here, deadline_s, self.aborted.update)

    async def begin(self, frontend: str, of: Batch, place: int = 0) -> None:
        """A batch of a frontend; its key is its first request and `place`."""
        await self.owner.begin(frontend, (of.requests[0].request_id, place, of.cache_life), of)


def test_a_new_frontend_waits_for_what_runs() -> None:
    """It begins when the last batch of the one before has ended."""

    async def scenario() -> list[bool]:
        case = Case()
        await case.begin("old", batch())
        waiting = asyncio.create_task(case.begin("new", batch("b")))
        await asyncio.sleep(0)
        states = [waiting.done()]
        case.owner.passed(("a", 0, 0), [token()])
        await waiting
        return [*states, waiting.done()]

    assert asyncio.run(scenario()) == [False, True]


def test_an_answer_of_several_tokens_runs_until_the_last() -> None:
    """The first pass is not its end."""

    async def scenario() -> bool:
        case = Case()
        await case.begin("old", batch())
        case.owner.passed(("a", 0, 0), [Token(request_id="a", token_id=1)])
        waiting = asyncio.create_task(case.begin("new", batch("b")))
        await asyncio.sleep(0)
        is_waiting = not waiting.done()
        case.owner.passed(("a", 0, 0), [token()])
        await waiting
        return is_waiting

    assert asyncio.run(scenario())


def test_the_one_before_is_not_let_in_again() -> None:
    """Its bookkeeping knows nothing of the new one's."""

    async def scenario() -> None:
        case = Case()
        await case.begin("old", batch())
        case.owner.passed(("a", 0, 0), [token()])
        await case.begin("new", batch("b"))
        await case.begin("old", batch("c"))

    with pytest.raises(Unavailable, match="another frontend has taken over this group"):
        asyncio.run(scenario())


def test_a_prompt_under_way_is_waited_for_while_its_frontend_is_here() -> None:
    """Its next piece reads what the first one wrote."""

    async def scenario() -> None:
        case = Case(deadline_s=0.01)
        await case.begin("old", Batch((LONG.chunk(0, 10),)))
        case.owner.passed(("long", 0, 0), [])
        await case.begin("new", batch())

    with pytest.raises(PeerTimeout, match="0 batches run, 1 prompts are under way"):
        asyncio.run(scenario())


def test_nobody_waits_for_a_prompt_whose_frontend_is_gone() -> None:
    """Its next piece will not come."""

    async def scenario() -> None:
        case = Case(deadline_s=0.01)
        await case.begin("old", Batch((LONG.chunk(0, 10),)))
        case.owner.passed(("long", 0, 0), [])
        case.here.remove("old")
        await case.begin("new", batch())

    asyncio.run(scenario())


def test_a_frontend_that_begins_anew_waits_for_what_it_has_lost_sight_of() -> None:
    """A batch of its last cache still writes; a prompt under way does not, and its next piece will not come."""

    async def scenario() -> list[bool]:
        case = Case()
        await case.begin("old", Batch((LONG.chunk(0, 10),)), 0)
        case.owner.passed(("long", 0, 0), [])
        await case.begin("old", batch(), 0)
        waiting = asyncio.create_task(case.begin("old", replace(batch("b"), cache_life=1)))
        await asyncio.sleep(0)
        states = [waiting.done()]
        case.owner.passed(("a", 0, 0), [token()])
        await waiting
        return [*states, waiting.done()]

    assert asyncio.run(scenario()) == [False, True]


@pytest.mark.parametrize("is_here", [True, False])
def test_what_a_frontend_that_is_gone_had_running_is_ended(is_here: bool) -> None:
    """Who comes waits for its next token, not for its last; one that is here is waited for."""

    async def scenario() -> set[str]:
        case = Case(deadline_s=0.01)
        await case.begin("old", Batch((*batch("a").requests, *batch("b").requests)))
        await case.begin("old", batch("done"))
        case.owner.passed(("done", 0, 0), [token("done")])
        if not is_here:
            case.here.remove("old")
        with pytest.raises(PeerTimeout):
            await case.begin("new", batch("c"))
        return case.aborted

    assert asyncio.run(scenario()) == (set() if is_here else {"a", "b"})


def test_an_older_life_never_follows_a_newer_one() -> None:
    """A batch that waited too long, whose prompts have come again: its tables mean nothing any more."""

    async def scenario() -> None:
        case = Case()
        await case.begin("other", batch())
        stale = asyncio.create_task(case.begin("new", batch("b")))
        await asyncio.sleep(0)
        again = asyncio.create_task(case.begin("new", replace(batch("b"), cache_life=2)))
        await asyncio.sleep(0)
        case.owner.passed(("a", 0, 0), [token()])
        await again
        await stale

    with pytest.raises(Unavailable):
        asyncio.run(scenario())


def test_a_batch_that_was_not_put_holds_nobody_up() -> None:
    """Its chunk before did not come; a later life begins at once."""

    async def scenario() -> None:
        case = Case(deadline_s=0.01)
        await case.begin("old", batch())
        case.owner.drop(("a", 0, 0))
        await case.begin("new", batch("b"))

    asyncio.run(scenario())


def test_a_batch_without_blocks_is_nobodys() -> None:
    """The warm-up of a second frontend, for instance."""

    async def scenario() -> None:
        case = Case(deadline_s=0.01)
        await case.begin("old", batch())
        await case.begin("new", Batch((Request(request_id="warm", num_tokens=5, arrival_s=0.0),)))

    asyncio.run(scenario())
