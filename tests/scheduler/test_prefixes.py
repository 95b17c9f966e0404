"""Prompts found in the caches of their groups, case by case: blocks of 4 tokens."""

from __future__ import annotations

import array
from collections.abc import Sequence

import pytest

from asap_ray.batch import Request, Sampling
from asap_ray.errors import RequestError
from asap_ray.kvcache.block_keys import block_keys, root_key
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.order import first_come
from asap_ray.scheduler.paper import Paper
from asap_ray.scheduler.policy import Policy
from asap_ray.scheduler.prefixes import Prefixes
from asap_ray.scheduler.turns import Turns
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.0)
BLOCK = 4
ROOT = root_key("model")


class Case:
    """A scheduler with caches, and the prompts it was given."""

    def __init__(self, num_groups: int = 1, num_blocks: int = 32, policy: Policy | None = None) -> None:
        self.num_blocks = num_blocks
        self.prefixes = Prefixes(lambda: PrefixCache(BlockPool(self.num_blocks, BLOCK)), num_groups)
        self.policy = DualBatchScheduler(PREFILL, num_groups, 100, 1000, policy or Paper(PREFILL))
        self.policy.open_caches(self.prefixes)

    def submit(self, name: str, tokens: Sequence[int], max_tokens: int = 1) -> None:
        """A prompt of these token ids."""
        ids = array.array("i", tokens).tobytes()
        sampling = Sampling(max_tokens=max_tokens)
        request = Request(request_id=name, num_tokens=len(tokens), arrival_s=0.0, token_ids=ids, sampling=sampling)
        self.policy.submit(request, 0.0, block_keys(ids, BLOCK, ROOT))

    def end(self, assignment: Assignment, now: float) -> None:
        """A batch ends well."""
        self.policy.computed(assignment.batch, now)
        self.policy.done(assignment.group, assignment.batch, now)

    def run(self, name: str, tokens: Sequence[int], now: float) -> None:
        """A prompt runs by itself, for a second."""
        self.submit(name, tokens)
        (assignment,) = self.policy.assign(now)
        self.end(assignment, now + 1.0)

    def held(self) -> list[int]:
        """Blocks held, by group."""
        return [cache.num_held for cache in self.prefixes.caches]


def placed(assignments: list[Assignment]) -> list[tuple[int, str]]:
    """(group, pieces) of each assignment, a piece as its name, its first token and the one behind its last."""
    return [
        (
            each.group,
            " ".join(f"{p.request_id}:{p.past_tokens}-{p.past_tokens + p.num_tokens}" for p in each.batch.requests),
        )
        for each in assignments
    ]


def turns() -> Turns:
    """Turns of 24 tokens, first come, first served."""
    return Turns(PREFILL, order=first_come)


@pytest.mark.parametrize(("num_tokens", "piece"), [(20, "b:16-20"), (16, "b:12-16"), (19, "b:16-19"), (9, "b:8-9")])
def test_a_prompt_runs_behind_what_is_cached(num_tokens: int, piece: str) -> None:
    """Full blocks of 4, and never its last token."""
    case = Case()
    case.run("a", range(20), now=0.0)

    case.submit("b", range(num_tokens))

    assert placed(case.policy.assign(2.0)) == [(0, piece)]


def test_a_hit_has_the_blocks_of_the_prompt_before_it() -> None:
    """Its table begins with them; the rest are its own."""
    case = Case()
    case.submit("a", range(8))
    (first,) = case.policy.assign(0.0)
    case.end(first, 1.0)
    case.submit("b", range(12))

    (second,) = case.policy.assign(2.0)

    (a,), (b,) = first.batch.requests, second.batch.requests
    assert (b.cached_tokens, b.table[:2], len(b.table)) == (8, a.table, 3)


def test_nothing_is_found_of_a_batch_that_failed() -> None:
    """Only what was computed is published."""
    case = Case()
    case.submit("a", range(20))
    (first,) = case.policy.assign(0.0)
    case.policy.done(first.group, first.batch, 1.0)

    case.submit("b", range(20))

    assert placed(case.policy.assign(2.0)) == [(0, "b:0-20")]


def test_a_batch_is_filled_with_what_is_really_computed() -> None:
    """Two prompts of 20 tokens with 16 cached are 8 tokens, the inflection point; without, the first one was enough."""
    case = Case()
    case.run("a", range(20), now=0.0)

    case.submit("b", range(20))
    case.submit("c", range(20))

    assert placed(case.policy.assign(2.0)) == [(0, "b:16-20 c:16-20")]


def test_a_long_prompt_that_is_mostly_cached_runs_whole_and_not_alone() -> None:
    """Of 40 tokens, a solo, 4 are left."""
    case = Case()
    case.run("a", range(40), now=0.0)

    case.submit("b", range(40))
    case.submit("c", range(100, 104))

    assert placed(case.policy.assign(2.0)) == [(0, "b:36-40 c:0-4")]


def test_a_cut_prompt_begins_behind_its_prefix() -> None:
    """Pieces of equal work of what is left; each has the table of all."""
    case = Case(policy=turns())
    case.run("a", range(16), now=0.0)
    case.submit("b", range(64))

    started = case.policy.assign(2.0)

    assert placed(started) == [(0, "b:16-40"), (0, "b:40-64")]
    assert {len(each.batch.requests[0].table) for each in started} == {16}


def test_turns_take_prompts_beyond_the_longest_batch() -> None:
    """100 tokens with batches of at most 64: the cache is the limit."""
    case = Case(policy=turns())
    case.submit("a", range(100))
    ended = []

    while started := case.policy.assign(float(len(ended))):
        case.end(started[0], len(ended) + 1.0)
        ended += placed(started[:1])
        for other in started[1:]:
            case.end(other, len(ended) + 1.0)
            ended += placed([other])

    assert ended == [(0, "a:0-20"), (0, "a:20-40"), (0, "a:40-60"), (0, "a:60-80"), (0, "a:80-100")]
    assert case.held() == [0]


def test_a_prompt_no_cache_can_hold_is_refused() -> None:
    """Its answer counts."""
    with pytest.raises(RequestError, match="up to 129 tokens; the cache of an attention group holds 128"):
        Case(policy=turns()).submit("a", range(100), max_tokens=30)


def test_the_papers_policy_takes_one_batch_at_the_most() -> None:
    """Longer prompts need pieces."""
    with pytest.raises(RequestError, match="prompt has 65 tokens; this instance takes 1 to 64"):
        Case().submit("a", range(65))


def test_a_prompt_waits_until_others_let_go() -> None:
    """Eight blocks: two prompts of four, and a third when one has ended."""
    case = Case(num_blocks=8)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        case.submit(name, range(start, start + 16))
    first, _ = case.policy.assign(0.0)

    assert case.policy.wake_at(0.0) is None
    case.end(first, 1.0)
    assert placed(case.policy.assign(1.0)) == [(0, "c:0-16")]


def test_no_smaller_prompt_passes_one_that_finds_no_room() -> None:
    """It would never find any."""
    case = Case(num_blocks=8)
    case.submit("a", range(20))
    case.policy.assign(0.0)
    case.submit("b", range(100, 116))
    case.submit("c", range(200, 204))

    assert (case.policy.assign(0.0), case.policy.num_queued) == ([], 2)


def test_of_a_batch_what_finds_room_runs() -> None:
    """The rest is next."""
    case = Case(num_blocks=5)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        case.submit(name, range(start, start + 3), max_tokens=6)

    assert placed(case.policy.assign(0.0)) == [(0, "a:0-3 b:0-3")]
    assert (case.policy.num_queued, case.held()) == (1, [4])


def test_a_prompt_whose_prefix_its_own_batch_evicts_comes_next() -> None:
    """Five blocks, two of them cached for c: a and b leave room for c only without them."""
    case = Case(num_blocks=5)
    case.run("z", range(8), now=0.0)
    for name, tokens in (("a", range(50, 54)), ("b", range(60, 63)), ("c", range(12))):
        case.submit(name, tokens, max_tokens=5)

    first = case.policy.assign(2.0)
    case.end(first[0], 3.0)

    assert placed(first) == [(0, "a:0-4 b:0-3")]
    assert placed(case.policy.assign(3.0)) == [(0, "c:4-12")]


def test_a_prompt_goes_where_its_prefix_is() -> None:
    """Group 0 has it; both are idle, and 1 would be next."""
    case = Case(num_groups=2)
    case.run("a", range(20), now=0.0)
    case.submit("b", range(50, 58))
    case.policy.assign(2.0)

    case.submit("c", range(20))

    assert placed(case.policy.assign(2.0)) == [(0, "c:16-20")]


def test_an_idle_group_leaves_a_prompt_no_longer_than_the_prefix_saves() -> None:
    """20 tokens take a second a group, 16 are cached on group 0, whose slots hold 10 tokens: then group 1 takes it."""
    case = Case(num_groups=2)
    case.run("a", range(20), now=0.0)
    token_s = 2 * 1.0 / 20  # the rate of both groups, halved
    case.policy.mark_down(1)
    for name, start in (("b", 50), ("c", 60)):
        case.submit(name, range(start, start + 5))
        case.policy.assign(2.0)
    case.policy.mark_up(1)
    case.submit("d", range(20))

    assert case.policy.assign(2.0) == []
    assert case.policy.wake_at(2.0) == pytest.approx(2.0 + 16 * token_s)
    assert placed(case.policy.assign(2.0 + 16 * token_s)) == [(1, "d:0-20")]


def test_a_long_queue_is_worth_more_than_a_short_prefix() -> None:
    """Group 0 has 4 of 20 tokens and 32 to do: group 1 takes it at once."""
    case = Case(num_groups=2)
    case.run("a", range(4), now=0.0)
    case.submit("b", range(100, 132))
    case.policy.assign(2.0)

    case.submit("c", range(20))

    assert placed(case.policy.assign(2.0)) == [(1, "c:0-20")]


def test_a_lost_group_loses_what_it_had() -> None:
    """Its prompts start over from their first token, and it comes back empty."""
    case = Case()
    case.run("a", range(20), now=0.0)
    case.submit("b", range(20))
    (started,) = case.policy.assign(2.0)
    case.policy.mark_down(0)
    case.policy.requeue(started.batch)
    case.policy.mark_up(0)

    (again,) = case.policy.assign(3.0)
    assert placed([again]) == [(0, "b:0-20")]
    assert (started.batch.cache_life, again.batch.cache_life > 0) == (0, True)


def test_a_group_comes_back_with_the_room_it_has_now() -> None:
    """Its successor's process found less memory: no block is handed out that it does not have."""
    case = Case(num_blocks=32)
    case.policy.mark_down(0)
    case.num_blocks = 30
    case.policy.mark_up(0)

    assert case.prefixes.room == 30 * BLOCK


def test_the_longest_prompt_is_what_every_cache_has_room_for_now() -> None:
    """A group comes back with room for 40 tokens where there was room for 64: the other one's room does not help."""
    case = Case(num_groups=2, num_blocks=16)
    before = case.policy.longest_prompt
    case.num_blocks = 10
    case.policy.mark_down(1)
    case.policy.mark_up(1)

    assert (before, case.policy.longest_prompt) == (64, 40)


def test_an_id_whose_blocks_are_lent_is_in_use() -> None:
    """Until they are pulled, or the lease ends."""
    case = Case()
    case.submit("a", range(8))
    (started,) = case.policy.assign(0.0)
    case.policy.lend("a")
    case.end(started, 1.0)

    with pytest.raises(RequestError, match="'a' is in use"):
        case.submit("a", range(8))


def test_a_cancelled_prompt_lets_go_when_none_of_it_runs() -> None:
    """Its pieces in flight still write."""
    case = Case(policy=turns())
    case.submit("a", range(64))
    first, second = case.policy.assign(0.0)
    case.policy.cancel("a")
    held = [case.held()]
    for each in (first, second):
        case.end(each, 1.0)
        held.append(case.held())

    assert held == [[16], [16], [0]]


def test_a_group_hears_what_to_forget_although_its_batch_finds_no_room() -> None:
    """The next one says so."""
    case = Case(policy=turns(), num_blocks=16)
    case.submit("a", range(64))
    for each in (started := case.policy.assign(0.0)):
        if each is started[-1]:
            case.policy.cancel("a")
        case.end(each, 1.0)
    case.submit("b", range(100, 160), max_tokens=5)
    blocker = case.prefixes.caches[0].reserve("lease", (), 4, 4)
    full = case.policy.assign(2.0)
    case.prefixes.caches[0].release("lease")

    assert (full, blocker is None) == ([], False)
    assert [each.batch.forget for each in case.policy.assign(3.0)] == [("a",), ()]


def test_blocks_that_are_lent_outlive_their_prompt() -> None:
    """Whoever borrowed them lets them go; until then they are held, and can be hit."""
    case = Case()
    case.submit("a", range(8))
    (assignment,) = case.policy.assign(0.0)
    case.policy.lend("a")
    case.end(assignment, 1.0)
    while_lent = case.held()
    case.prefixes.caches[0].release("a")

    assert (while_lent, case.held()) == ([2], [0])


def test_a_lent_prompt_may_be_let_go_before_its_batch_ends() -> None:
    """A pull may be over while another request of the batch still decodes."""
    case = Case()
    case.submit("a", range(8))
    (assignment,) = case.policy.assign(0.0)
    case.policy.computed(assignment.batch, 1.0)
    case.policy.lend("a")
    case.prefixes.caches[0].release("a")
    case.policy.done(0, assignment.batch, 1.0)

    assert case.held() == [0]
