"""Prompts in turns, case by case: batches of at most one turn, 24 tokens here."""

from __future__ import annotations

import pytest

from asap_ray.batch import Request, Sampling
from asap_ray.errors import ConfigError, RequestError
from asap_ray.scheduler.cut import EqualTokens, EqualWork, whole
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.order import HeadStart, first_come
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.shares import tokens
from asap_ray.scheduler.turns import Turns
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)


def squares(past_tokens: int, num_tokens: int) -> float:
    """Attention without its linear part."""
    return num_tokens * (2 * past_tokens + num_tokens)


def request(name: str, num_tokens: int, arrival_s: float = 0.0, max_tokens: int = 1) -> Request:
    """A request of which only the length matters."""
    sampling = Sampling(max_tokens=max_tokens)
    return Request(request_id=name, num_tokens=num_tokens, arrival_s=arrival_s, sampling=sampling)


def scheduler(num_groups: int = 1) -> DualBatchScheduler:
    """First come, first served, work in tokens."""
    return DualBatchScheduler(PREFILL, num_groups, 100, 1000, policy=Turns(PREFILL, order=first_come))


def submit(policy: DualBatchScheduler, *requests: Request) -> None:
    """Submit requests at time 0."""
    for each in requests:
        policy.submit(each, now=0.0)


def placed(assignments: list[Assignment]) -> list[tuple[int, str]]:
    """(group, pieces) of each assignment, a piece as its name and the tokens behind it."""
    return [
        (
            each.group,
            " ".join(f"{piece.request_id}{piece.past_tokens + piece.num_tokens}" for piece in each.batch.requests),
        )
        for each in assignments
    ]


def test_short_prompts_share_a_turn() -> None:
    """A batch takes what fits in 24 tokens, not more."""
    policy = scheduler()
    submit(policy, request("a", 10), request("b", 10), request("c", 10))

    assert placed(policy.assign(0.0)) == [(0, "a10 b10"), (0, "c10")]


def test_a_batch_short_of_the_inflection_point_takes_the_next_whatever_it_is() -> None:
    """Too small a batch would waste the MoE stage (2.2.2)."""
    policy = scheduler()
    submit(policy, request("a", 7), request("b", 24))

    assert placed(policy.assign(0.0)) == [(0, "a7 b24")]


def test_a_batch_waits_for_company_only_so_long() -> None:
    """Below the inflection point, until `max_wait_s`."""
    policy = scheduler()
    submit(policy, request("a", 7))

    assert (placed(policy.assign(0.0)), policy.wake_at(0.0)) == ([], 0.005)
    assert placed(policy.assign(0.005)) == [(0, "a7")]


def test_a_long_prompt_overlaps_with_itself() -> None:
    """Its first two pieces are in the two slots of its group, the next follows on it when one is free."""
    policy = scheduler(num_groups=2)
    submit(policy, request("a", 64))

    started = policy.assign(0.0)
    assert placed(started) == [(0, "a22"), (0, "a43")]

    policy.done(0, started[0].batch, now=1.0)
    assert placed(policy.assign(1.0)) == [(0, "a64")]


def test_a_short_prompt_waits_for_a_piece_and_not_for_the_prompt() -> None:
    """With a head start it goes before the rest of a long one."""
    policy = DualBatchScheduler(PREFILL, 1, 100, 1000, policy=policy_of("asap", PREFILL, tokens))
    submit(policy, request("a", 64))
    first, _ = policy.assign(0.0)
    submit(policy, request("b", 8, arrival_s=1.0))

    policy.done(0, first.batch, now=1.0)

    assert placed(policy.assign(1.0)) == [(0, "b8")]


def test_a_group_has_one_long_prompt_under_way() -> None:
    """Short ones pass the second while it waits."""
    policy = scheduler()
    submit(policy, request("a", 64), request("b", 64), request("c", 10))
    first, second = policy.assign(0.0)
    policy.done(0, first.batch, now=1.0)
    (third,) = policy.assign(1.0)
    policy.done(0, second.batch, now=2.0)
    policy.done(0, third.batch, now=2.0)

    assert placed([third]) == [(0, "a64")]
    assert placed(policy.assign(2.0)) == [(0, "b22"), (0, "b43")]


def test_prompts_whose_answers_decode_share_the_room_of_the_longest_prompt() -> None:
    """The keys and values a batch keeps are at most `max_tokens`."""
    policy = scheduler()
    submit(policy, request("a", 4, max_tokens=30), request("b", 4, max_tokens=30))

    assert placed(policy.assign(1.0)) == [(0, "a4"), (0, "b4")]


def test_queued_tokens_are_those_no_batch_has() -> None:
    """Pieces to come count, what runs does not."""
    policy = scheduler()
    submit(policy, request("a", 64), request("b", 10))
    policy.assign(0.0)

    assert (policy.num_queued, policy.num_queued_tokens) == (1, 31)


def test_of_a_prompt_under_way_the_rest_can_be_cancelled_once() -> None:
    """What runs finishes; its id is in use until then."""
    policy = scheduler()
    submit(policy, request("a", 64))
    started = policy.assign(0.0)

    assert [policy.cancel("a"), policy.cancel("a")] == [True, False]
    assert policy.num_queued_tokens == 0
    with pytest.raises(RequestError, match="'a' is in use"):
        submit(policy, request("a", 3))
    for each in started:
        policy.done(0, each.batch, now=1.0)
    policy.check(request("a", 3))


def test_a_cancelled_prompt_makes_room_for_the_next_long_one() -> None:
    """Its group goes on with that at once."""
    policy = scheduler()
    submit(policy, request("a", 64), request("b", 64))
    first, _ = policy.assign(0.0)
    policy.done(0, first.batch, now=1.0)

    policy.cancel("a")

    assert placed(policy.assign(1.0)) == [(0, "b22")]


def test_a_group_hears_of_a_cancelled_prompt_when_nothing_of_it_runs() -> None:
    """Batches of a group may overtake each other on the way: the one that says forget comes behind all of its own."""
    policy = scheduler()
    submit(policy, request("a", 64), request("b", 10), request("c", 10), request("d", 10))
    first, second = policy.assign(0.0)
    policy.cancel("a")
    policy.done(0, first.batch, now=1.0)
    beside = policy.assign(1.0)
    policy.done(0, second.batch, now=2.0)
    behind = policy.assign(2.0)

    assert [(each.batch.forget, placed([each])) for each in beside + behind] == [
        ((), [(0, "b10 c10")]),
        (("a",), [(0, "d10")]),
    ]


def test_a_prompt_whose_last_piece_runs_is_neither_cancelled_nor_forgotten() -> None:
    """That piece takes the keys and values along."""
    policy = scheduler()
    submit(policy, request("a", 30), request("b", 10))
    first, last = policy.assign(0.0)
    assert not policy.cancel("a")
    policy.done(0, first.batch, now=1.0)
    policy.done(0, last.batch, now=1.0)

    assert [each.batch.forget for each in policy.assign(1.0)] == [()]


def test_a_cancelled_prompt_does_not_start_over() -> None:
    """Its group is lost, but nobody waits for it any more."""
    policy = scheduler(num_groups=2)
    submit(policy, request("a", 64))
    started = policy.assign(0.0)
    policy.cancel("a")

    policy.mark_down(0)
    for each in started:
        policy.requeue(each.batch)

    assert policy.assign(1.0) == []
    policy.check(request("a", 3))


def test_a_prompt_whose_group_is_lost_between_two_pieces_starts_over() -> None:
    """No end of a batch would tell of it."""
    policy = scheduler(num_groups=2)
    submit(policy, request("a", 64))
    for each in policy.assign(0.0):
        policy.done(0, each.batch, now=1.0)

    policy.mark_down(0)

    assert placed(policy.assign(1.0)) == [(1, "a22"), (1, "a43")]
    assert policy.num_queued_tokens == 21


def test_a_prompt_that_fails_with_its_group_is_forgotten() -> None:
    """Its client was told; the id is free again."""
    policy = scheduler(num_groups=2)
    submit(policy, request("a", 64))
    started = policy.assign(0.0)

    policy.mark_down(0)
    for each in started:
        policy.done(0, each.batch, now=1.0)

    assert (policy.assign(1.0), policy.num_queued_tokens) == ([], 0)
    policy.check(request("a", 3))


@pytest.mark.parametrize(
    ("cut", "ends"),
    [
        (whole, [64]),
        (EqualTokens(24), [24, 48, 64]),
        (EqualWork(tokens, 24), [22, 43, 64]),
        (EqualWork(squares, 24 * 24), [23, 32, 40, 46, 51, 56, 60, 64]),
    ],
)
def test_pieces_of_a_prompt(cut: object, ends: list[int]) -> None:
    """Of equal work, later pieces are shorter: the square of 64 is 7.1 times that of 24."""
    assert callable(cut)

    assert [piece.past_tokens + piece.num_tokens for piece in cut(request("a", 64))] == ends


@pytest.mark.parametrize(("num_tokens", "key"), [(6, 2.25), (24, 6.0), (64, 6.0)])
def test_head_start_is_in_proportion_to_the_work_left_out(num_tokens: int, key: float) -> None:
    """A quarter of the full work counts as come at a quarter of the bound, all above it at the bound."""
    order = HeadStart(tokens, full_work=24, bound_s=5.0)

    assert order(request("a", num_tokens, arrival_s=1.0)) == key


def test_unknown_policy_names_the_known_ones() -> None:
    """A typing error in a configuration."""
    with pytest.raises(ConfigError, match="unknown policy 'fifo'; known: asap, paper"):
        policy_of("fifo", PREFILL, tokens)
