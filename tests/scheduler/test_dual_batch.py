"""Dual-batch interleaving (3.3.2), case by case."""

from __future__ import annotations

import pytest

from asap_ray.batch import Request
from asap_ray.errors import ConfigError, Overloaded, RequestError
from asap_ray.scheduler.admission import Admission, pairs, refill, single
from asap_ray.scheduler.drain_rate import UNKNOWN_S
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.paper import Paper
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)
SOLO = 40


def scheduler(num_groups: int = 1, max_queued_requests: int = 100, admission: Admission = refill) -> DualBatchScheduler:
    """A scheduler with room for what these tests need."""
    return DualBatchScheduler(PREFILL, num_groups, max_queued_requests, max_queued_tokens=200, admission=admission)


def submit(policy: DualBatchScheduler, *lengths: int) -> None:
    """Submit requests at time 0; each is named by its place in the queue and its length."""
    for num_tokens in lengths:
        name = f"{policy.num_queued}:{num_tokens}"
        policy.submit(Request(request_id=name, num_tokens=num_tokens, arrival_s=0.0), now=0.0)


def placed(assignments: list[Assignment]) -> list[tuple[int, int]]:
    """(group, tokens) of each assignment."""
    return [(each.group, each.batch.num_tokens) for each in assignments]


def test_two_batches_run_in_a_group_and_the_third_waits() -> None:
    """A group holds NUM_SLOTS batches (3.3.2)."""
    policy = scheduler()
    submit(policy, 8, 9, 10)

    assert placed(policy.assign(0.0)) == [(0, 8), (0, 9)]
    assert policy.num_queued == 1


def test_lone_batch_starts_without_a_partner() -> None:
    """At low load nobody waits for a pair."""
    policy = scheduler()
    submit(policy, 8)

    assert placed(policy.assign(0.0)) == [(0, 8)]


def test_slot_is_refilled_as_soon_as_one_batch_is_done() -> None:
    """The next batch joins the other one in flight."""
    policy = scheduler()
    submit(policy, 8, 9, 10)
    first, _ = policy.assign(0.0)

    policy.done(0, first.batch, now=1.0)

    assert placed(policy.assign(1.0)) == [(0, 10)]


def test_idle_groups_come_first_then_the_least_work() -> None:
    """Batches spread before they pair; the pair forms where fewest tokens are in flight."""
    policy = scheduler(num_groups=2)
    submit(policy, 20, 9, 10)

    assert placed(policy.assign(0.0)) == [(0, 20), (1, 9), (1, 10)]


def test_cost_of_the_caller_decides_where_the_work_is() -> None:
    """A sum of squares sees two short prompts as less work than a long one."""
    policy = DualBatchScheduler(
        PREFILL,
        num_groups=2,
        max_queued_requests=100,
        max_queued_tokens=200,
        policy=Paper(PREFILL, cost=lambda past, now: now * (2 * past + now)),
    )
    submit(policy, 15, 7, 12, 8)

    assert placed(policy.assign(0.0)) == [(0, 15), (1, 19), (1, 8)]


def test_solo_batch_runs_alone() -> None:
    """Above solo_tokens a batch occupies its group exclusively (3.3.2)."""
    policy = scheduler()
    submit(policy, SOLO, 8)

    assert placed(policy.assign(0.0)) == [(0, SOLO)]


def test_waiting_solo_keeps_the_group_that_is_free_soonest() -> None:
    """Later batches go on to the other group only."""
    policy = scheduler(num_groups=2)
    submit(policy, 20, 9)
    policy.assign(0.0)
    submit(policy, SOLO, 8, 8)

    assert placed(policy.assign(0.0)) == [(0, 8)]


def test_waiting_solo_starts_when_its_group_is_empty() -> None:
    """The kept group gets nothing else in between."""
    policy = scheduler(num_groups=2)
    submit(policy, 20, 9)
    short = policy.assign(0.0)[1]
    submit(policy, SOLO, 8, 8)
    policy.assign(0.0)

    policy.done(1, short.batch, now=1.0)

    assert placed(policy.assign(1.0)) == [(1, SOLO)]


def test_each_waiting_solo_keeps_a_group() -> None:
    """Two waiting solos on two groups: nothing passes them."""
    policy = scheduler(num_groups=2)
    submit(policy, 20, 9)
    policy.assign(0.0)
    submit(policy, SOLO, SOLO, 8)

    assert placed(policy.assign(0.0)) == []


def test_wake_is_when_the_forming_batch_is_due() -> None:
    """With a free slot, time alone starts an unfilled batch at max_wait_s."""
    policy = scheduler()
    submit(policy, 3)

    assert (policy.assign(0.0), policy.wake_at(0.0)) == ([], 0.005)
    assert placed(policy.assign(0.005)) == [(0, 3)]


def test_nothing_wakes_a_full_group() -> None:
    """Only `done` helps, so there is no time to wait for."""
    policy = scheduler()
    submit(policy, 8, 8, 8)
    policy.assign(0.0)

    assert policy.wake_at(0.0) is None


def test_wake_is_now_when_a_batch_could_start() -> None:
    """Before `assign`, a closed batch and a free slot need no waiting."""
    policy = scheduler()
    submit(policy, 8)

    assert policy.wake_at(2.5) == 2.5


def test_down_group_gets_nothing_until_it_is_up() -> None:
    """Its batches run elsewhere, or wait."""
    policy = scheduler()
    submit(policy, 8)

    policy.mark_down(0)
    assert (policy.assign(0.0), policy.wake_at(0.0)) == ([], None)

    policy.mark_up(0)
    assert placed(policy.assign(0.0)) == [(0, 8)]


def test_batch_of_a_lost_group_runs_first_on_another() -> None:
    """A requeued batch is at the head and leaves the group it was on."""
    policy = scheduler(num_groups=2)
    submit(policy, 9, 20, 21, 22, 23)
    lost = policy.assign(0.0)[0]

    policy.mark_down(0)
    policy.requeue(lost.batch)
    policy.done(1, policy.in_flight(1)[0], now=1.0)

    assert policy.assign(1.0) == [Assignment(1, lost.batch)]
    assert lost.batch not in policy.in_flight(0)


def test_cancel_reaches_queued_requests_only() -> None:
    """A running batch finishes."""
    policy = scheduler()
    submit(policy, 8)
    submit(policy, 3)
    policy.assign(0.0)

    assert [policy.cancel("0:8"), policy.cancel("1:3")] == [False, True]
    assert policy.in_flight(0)[0].num_tokens == 8


@pytest.mark.parametrize(("max_queued_requests", "lengths"), [(2, (1, 1)), (100, (64, 64, 64))])
def test_full_queue_refuses(max_queued_requests: int, lengths: tuple[int, ...]) -> None:
    """Requests and tokens are both bounded; without history the client is told a constant."""
    policy = scheduler(max_queued_requests=max_queued_requests)
    submit(policy, *lengths)

    with pytest.raises(Overloaded) as caught:
        submit(policy, 9)

    assert caught.value.retry_after_s == UNKNOWN_S


def test_retry_after_is_the_time_to_drain_the_queue() -> None:
    """16 tokens took 2 s of work, idle time aside; 192 queued tokens take 24 s."""
    policy = scheduler()
    submit(policy, 16)
    (first,) = policy.assign(100.0)
    policy.done(0, first.batch, now=102.0)
    submit(policy, 64, 64, 64)

    with pytest.raises(Overloaded) as caught:
        submit(policy, 9)

    assert caught.value.retry_after_s == 24.0


def test_too_long_prompt_is_refused_even_when_the_queue_is_full() -> None:
    """Coming back later would not help it."""
    policy = scheduler(max_queued_requests=1)
    submit(policy, 8)

    with pytest.raises(RequestError):
        submit(policy, 65)


@pytest.mark.parametrize("num_tokens", [0, 65])
def test_impossible_length_is_refused(num_tokens: int) -> None:
    """A prompt of no tokens, or above max_tokens, can never run."""
    with pytest.raises(RequestError, match=f"{num_tokens} tokens; this instance takes 1 to 64") as caught:
        submit(scheduler(), num_tokens)

    assert caught.value.param == "prompt"


def test_an_id_that_waits_is_refused() -> None:
    """Two queued requests of one id could not be told apart."""
    policy = scheduler()
    submit(policy, 3)

    with pytest.raises(RequestError, match="'0:3' is in use"):
        policy.check(Request(request_id="0:3", num_tokens=1, arrival_s=0.0))


def test_an_id_that_runs_is_refused() -> None:
    """Nor one that runs."""
    policy = scheduler()
    submit(policy, 8)
    policy.assign(0.0)

    with pytest.raises(RequestError, match="'0:8' is in use") as caught:
        submit(policy, 8)

    assert caught.value.param == "request_id"


def test_queue_must_admit_the_longest_prompt() -> None:
    """A bound below max_tokens would refuse a legal prompt for ever."""
    with pytest.raises(ConfigError, match="max_queued_tokens=63 is below max_tokens=64"):
        DualBatchScheduler(PREFILL, num_groups=1, max_queued_requests=1, max_queued_tokens=63)


def test_pairs_start_together_on_an_idle_group() -> None:
    """The paper's admission (3.3.2): what comes later waits until both are done."""
    policy = scheduler(admission=pairs)
    submit(policy, 8, 9, 10)
    first, second = policy.assign(0.0)

    policy.done(0, first.batch, now=1.0)
    assert placed(policy.assign(1.0)) == []

    policy.done(0, second.batch, now=2.0)
    assert placed(policy.assign(2.0)) == [(0, 10)]


def test_a_lone_batch_is_half_a_pair() -> None:
    """No batch waits for a partner while a group is idle, and none joins it later."""
    policy = scheduler(admission=pairs)
    submit(policy, 8)
    policy.assign(0.0)
    submit(policy, 9)

    assert placed(policy.assign(1.0)) == []


def test_without_interleaving_a_group_runs_one_batch() -> None:
    """The ablation of 5.5.1."""
    policy = scheduler(admission=single)
    submit(policy, 8, 9)

    assert placed(policy.assign(0.0)) == [(0, 8)]
