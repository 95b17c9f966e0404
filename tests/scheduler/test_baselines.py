"""The policies of synchronous systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.batch import Batch, Request
from asap_ray.errors import ConfigError
from asap_ray.scheduler.baselines import (
    LockstepScheduler,
    Strong,
    chunked,
    chunked_per_group,
    default,
    default_per_group,
    strong,
)
from asap_ray.scheduler.shares import Filling, Piece

BUDGET, CHUNK = 16, 8
Step = list[tuple[Batch, ...]]


def seconds(past_tokens: int, num_tokens: int) -> float:
    """Linear and quadratic work, as attention has."""
    return num_tokens + num_tokens * (2 * past_tokens + num_tokens) / 10


SMALL = Strong(budget_tokens=BUDGET, chunk_tokens=CHUNK, delay_s=0.5, overlap_tokens=24, token_s=0.1)
POLICIES: dict[str, Callable[[int], LockstepScheduler]] = {
    "default": lambda groups: default(groups, BUDGET),
    "default_per_group": lambda groups: default_per_group(groups, BUDGET),
    "chunked": lambda groups: chunked(groups, BUDGET, CHUNK),
    "chunked_per_group": lambda groups: chunked_per_group(groups, BUDGET, CHUNK),
    "strong": lambda groups: strong(groups, SMALL, seconds),
}


def request(name: str, num_tokens: int, arrival_s: float = 0.0) -> Request:
    """A whole prompt."""
    return Request(request_id=name, num_tokens=num_tokens, arrival_s=arrival_s)


def submit(policy: LockstepScheduler, *lengths: int) -> None:
    """Queue prompts named by their place, all at once."""
    for index, num_tokens in enumerate(lengths):
        policy.submit(request(str(index), num_tokens), 0.0)


def lengths(step: Step | None) -> list[list[list[int]]]:
    """Tokens of every piece, by group and micro-batch."""
    assert step is not None
    return [[[piece.num_tokens for piece in batch.requests] for batch in batches] for batches in step]


def names(step: Step | None) -> list[list[str]]:
    """Whose pieces each group runs."""
    assert step is not None
    return [[piece.request_id for batch in batches for piece in batch.requests] for batches in step]


def test_default_gives_the_next_prompt_to_the_least_loaded_group() -> None:
    """First come, first served: 9, 4, 6, 3 on two groups are 9 + 3 and 4 + 6 tokens."""
    policy = default(2, BUDGET)
    submit(policy, 9, 4, 6, 3)

    assert lengths(policy.step(0.0)) == [[[9, 3]], [[4, 6]]]


def test_default_stops_at_the_first_prompt_without_room() -> None:
    """12 does not fit beside 10, so 1 waits behind it."""
    policy = default(1, BUDGET)
    submit(policy, 10, 12, 1)

    assert lengths(policy.step(0.0)) == [[[10]]]
    assert lengths(policy.step(1.0)) == [[[12, 1]]]


def test_a_prompt_above_the_budget_runs_alone() -> None:
    """An empty group takes any prompt."""
    policy = default(1, BUDGET)
    submit(policy, 40, 1)

    assert lengths(policy.step(0.0)) == [[[40]]]


def test_vllm_sends_a_prompt_to_the_fewest_requests() -> None:
    """A queue a group counts requests, not tokens: 16 and 15 meet, and 1 and 1 meet."""
    policy = default_per_group(2, BUDGET)
    submit(policy, 16, 1, 15, 1)

    assert lengths(policy.step(0.0)) == [[[16]], [[1, 1]]]
    assert lengths(policy.step(1.0)) == [[[15]], [[]]]


def test_vllm_counts_a_waiting_request_four_times() -> None:
    """With one waiting on group 0 and one running on each, the next goes to group 1."""
    policy = default_per_group(2, BUDGET)
    submit(policy, 16, 16, 16)
    policy.step(0.0)

    policy.submit(request("next", 1), 0.5)

    assert names(policy.step(1.0)) == [["2"], ["next"]]


def test_chunks_follow_each_other_on_one_group() -> None:
    """20 tokens are chunks of 8, 8 and 4; the group's room goes to later prompts meanwhile."""
    policy = chunked(2, BUDGET, CHUNK)
    submit(policy, 20, 7, 3)

    assert lengths(policy.step(0.0)) == [[[8]], [[7, 3]]]
    assert lengths(policy.step(1.0)) == [[[8]], [[]]]
    assert lengths(policy.step(2.0)) == [[[4]], [[]]]


def test_strong_pieces_are_of_equal_work() -> None:
    """Each piece does the work of the first 1000 tokens: the second, whose past it attends to, has 416."""
    policy = strong(1, Strong(budget_tokens=1000, chunk_tokens=4000, delay_s=0, overlap_tokens=4000), seconds)
    submit(policy, 2000)

    assert lengths(policy.step(0.0)) == [[[1000]]]
    assert lengths(policy.step(1.0)) == [[[416]]]


def test_strong_steps_grow_with_what_waits() -> None:
    """Half of 40 waiting units is a step of 20; of 10, the least step of 8 remains."""
    settings = Strong(budget_tokens=30, least_tokens=8, backlog_part=0.5, chunk_tokens=40, delay_s=0)
    policy = strong(1, replace(settings, overlap_tokens=1000), lambda _, num_tokens: num_tokens)
    submit(policy, *[4] * 10)

    assert lengths(policy.step(0.0)) == [[[4] * 5]]
    assert lengths(policy.step(1.0)) == [[[4] * 2]]
    assert lengths(policy.step(2.0)) == [[[4] * 2]]


@pytest.mark.parametrize("load", [0.0, 5.0])
def test_filling_takes_all_that_fits(load: float) -> None:
    """The piece ends where one token more would exceed the budget."""
    cut = Filling(budget=50, least=1, cost=seconds)

    stop = cut.stop(20, 1000, load)

    assert load + seconds(20, stop - 20) <= 50 < load + seconds(20, stop + 1 - 20)


def test_filling_leaves_a_sliver() -> None:
    """A piece below the least size waits, unless it is the end of its prompt or its group is empty."""
    cut = Filling(budget=10, least=4)

    assert cut.stop(0, 100, 8.0) == 0
    assert cut.stop(98, 100, 8.0) == 100
    assert Filling(budget=2, least=4).stop(0, 100, 0.0) == 4


def test_overlap_cuts_the_prompt_in_the_middle() -> None:
    """Two micro-batches of equal tokens: 10 and 6 are 8 and 2 + 6."""
    policy = strong(1, Strong(budget_tokens=100, chunk_tokens=100, delay_s=0, overlap_tokens=16), lambda _, num: num)
    submit(policy, 10, 6)

    step = policy.step(0.0)

    assert lengths(step) == [[[8], [2, 6]]]
    assert step is not None
    assert step[0][1].requests[0].past_tokens == 8


def test_a_short_step_is_one_micro_batch() -> None:
    """Below the threshold nothing is overlapped."""
    policy = strong(1, Strong(delay_s=0, overlap_tokens=17), seconds)
    submit(policy, 10, 6)

    assert lengths(policy.step(0.0)) == [[[10, 6]]]


def test_shorter_prompts_pass_by_their_lead_in_tokens() -> None:
    """At 0.1 s a token, 5 tokens that come 0.4 s later pass 10; those that come 0.6 s later do not."""
    policy = strong(1, Strong(token_s=0.1, delay_s=0, overlap_tokens=1000), seconds)
    for name, num_tokens, arrival_s in [("first", 10, 0.0), ("passes", 5, 0.4), ("stays", 5, 0.6)]:
        policy.submit(request(name, num_tokens, arrival_s), arrival_s)

    assert names(policy.step(1.0)) == [["passes", "first", "stays"]]


def test_a_step_waits_for_company() -> None:
    """With one of two groups idle a step waits 0.5 s from when it could begin."""
    policy = strong(2, SMALL, seconds)
    policy.submit(request("a", 1), 1.0)

    assert policy.step(1.0) is None
    assert policy.wake_at(1.0) == 1.5
    assert names(policy.step(1.5)) == [["a"], []]


def test_a_step_that_is_full_waits_no_longer() -> None:
    """The wait ends when every group has something to run."""
    policy = strong(2, SMALL, seconds)
    policy.submit(request("a", 1), 1.0)
    policy.step(1.0)

    policy.submit(request("b", 1), 1.1)

    assert names(policy.step(1.1)) == [["a"], ["b"]]
    assert policy.wake_at(1.1) is None


@pytest.mark.parametrize("broken", [{"budget_tokens": 0}, {"chunk_tokens": -1}, {"delay_s": -0.1}, {"backlog_part": 0}])
def test_settings_that_make_no_sense_are_refused(broken: dict[str, float]) -> None:
    """Nothing starts with a budget, chunk or delay below its limit."""
    with pytest.raises(ConfigError):
        strong(2, Strong(**broken), seconds)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    num_groups=st.integers(1, 4),
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=30),
)
def test_every_token_runs_once_in_order_on_one_group(
    policy: str, num_groups: int, arrivals: list[tuple[int, int]]
) -> None:
    """Whatever comes, nothing is lost, doubled or reordered, and all groups have as many micro-batches."""
    scheduler = POLICIES[policy](num_groups)
    waiting = [request(str(index), num_tokens) for index, (_, num_tokens) in enumerate(arrivals)]
    gaps = [gap for gap, _ in arrivals]
    done: dict[str, int] = {}
    group_of: dict[str, int] = {}
    now = 0.0
    while waiting or sum(done.values()) < sum(num_tokens for _, num_tokens in arrivals):
        for _ in range(gaps[-len(waiting)] if waiting else 0):
            if waiting:
                scheduler.submit(waiting.pop(0), now)
        if (step := scheduler.step(now)) is None:
            wake_at = scheduler.wake_at(now)
            assert wake_at is not None or waiting
            if wake_at is None:
                scheduler.submit(waiting.pop(0), now)
            now = wake_at if wake_at is not None else now
            continue
        assert len(step) == num_groups
        assert len({len(batches) for batches in step}) == 1
        for group, batches in enumerate(step):
            for piece in (piece for batch in batches for piece in batch.requests):
                assert piece.past_tokens == done.get(piece.request_id, 0)
                assert group_of.setdefault(piece.request_id, group) == group
                done[piece.request_id] = piece.past_tokens + piece.num_tokens
                assert piece.future_tokens == arrivals[int(piece.request_id)][1] - done[piece.request_id]
        now += 1.0


@settings(max_examples=100, deadline=None)
@given(prompts=st.lists(st.integers(1, 60), min_size=1, max_size=30), policy=st.sampled_from(sorted(POLICIES)))
def test_no_group_exceeds_its_budget(prompts: list[int], policy: str) -> None:
    """A share above the budget is one piece, on a group that had nothing else to run."""
    scheduler = POLICIES[policy](3)
    submit(scheduler, *prompts)
    cost, budget = (seconds, seconds(0, BUDGET)) if policy == "strong" else (lambda _, num: num, BUDGET)

    step = scheduler.step(0.0) or scheduler.step(1.0)

    assert step is not None
    for batches in step:
        pieces = [Piece(piece, piece.past_tokens, 0) for batch in batches for piece in batch.requests]
        work = sum(cost(piece.start, piece.prompt.num_tokens) for piece in pieces)
        assert work <= budget + 1e-9 or len({piece.prompt.request_id for piece in pieces}) == 1
