"""What holds for every arrival pattern: driven in virtual time, event by event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.batch import Batch, Request, Sampling
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.spec import NUM_SLOTS, PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)


@dataclass(frozen=True)
class Workload:
    """Arrivals, and what the devices do with them."""

    num_groups: int
    arrivals: list[tuple[float, int]]  # (gap in seconds, tokens)
    answers: list[int]  # max_tokens of the requests, over and over
    token_s: float  # a batch takes this long per token
    lost_batches: frozenset[int]  # these assignments, by number, end in a requeue


@dataclass
class Run:
    """Everything that happened."""

    assignments: list[tuple[float, Assignment]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    arrived_s: dict[str, float] = field(default_factory=dict)


workloads = st.builds(
    Workload,
    num_groups=st.integers(1, 4),
    arrivals=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.001, 0.01, 0.1]),
            st.one_of(st.integers(1, 12), st.integers(1, PREFILL.max_tokens)),
        ),
        max_size=40,
    ),
    answers=st.lists(st.sampled_from([1, 1, 2, 20, 100]), min_size=1, max_size=7),
    token_s=st.sampled_from([1e-4, 1e-3, 1e-2]),
    lost_batches=st.just(frozenset()),
)


def drive(workload: Workload) -> Run:
    """Run a workload to its end, checking the limits at every step."""
    policy = DualBatchScheduler(PREFILL, workload.num_groups, max_queued_requests=1000, max_queued_tokens=10**6)
    run, now = Run(), 0.0
    due, arrivals = 0.0, []
    for index, (gap_s, num_tokens) in enumerate(workload.arrivals):
        due += gap_s
        sampling = Sampling(max_tokens=workload.answers[index % len(workload.answers)])
        arrivals.append(Request(request_id=str(index), num_tokens=num_tokens, arrival_s=due, sampling=sampling))
    ends: list[tuple[float, int, Assignment]] = []  # (time, number, assignment)
    while arrivals or ends or policy.num_queued:
        wake_at = policy.wake_at(now)
        times = [arrivals[0].arrival_s] if arrivals else []
        times += [] if wake_at is None else [wake_at]
        times += [end_s for end_s, _, _ in ends]
        assert times, f"{policy.num_queued} requests wait for nothing"
        now = min(times)
        while arrivals and arrivals[0].arrival_s <= now:
            request = arrivals.pop(0)
            run.arrived_s[request.request_id] = now
            policy.submit(request, now)
        for ended in [each for each in ends if each[0] <= now]:
            ends.remove(ended)
            _end(policy, run, workload, ended, now)
        for assignment in policy.assign(now):
            end_s = now + workload.token_s * assignment.batch.num_tokens
            ends.append((end_s, len(run.assignments), assignment))
            run.assignments.append((now, assignment))
        _check_limits(policy, workload.num_groups)
        assert policy.assign(now) == []
    return run


def _end(
    policy: DualBatchScheduler, run: Run, workload: Workload, ended: tuple[float, int, Assignment], now: float
) -> None:
    _, number, assignment = ended
    if number in workload.lost_batches:
        policy.requeue(assignment.batch)
        return
    policy.done(assignment.group, assignment.batch, now)
    run.finished += [request.request_id for request in assignment.batch.requests]


def _check_limits(policy: DualBatchScheduler, num_groups: int) -> None:
    for group in range(num_groups):
        batches = policy.in_flight(group)
        assert len(batches) <= NUM_SLOTS
        for batch in batches:
            solo = batch.num_tokens > PREFILL.solo_tokens
            assert batch.num_tokens <= PREFILL.max_tokens
            assert not solo or (len(batches) == 1 and len(batch.requests) == 1)
            assert _kv_tokens(batch) <= PREFILL.max_tokens or len(batch.requests) == 1


def _kv_tokens(batch: Batch) -> int:
    """Tokens whose keys and values the batch keeps until its answers are whole."""
    longer = [each for each in batch.requests if each.sampling.max_tokens > 1]
    return sum(each.num_tokens + each.sampling.max_tokens - 1 for each in longer)


def batch_names(run: Run) -> list[list[int]]:
    """Request numbers of every batch, in the order of assignment."""
    return [[int(each.request_id) for each in made.batch.requests] for _, made in run.assignments]


@given(workloads)
def test_every_request_finishes_exactly_once(workload: Workload) -> None:
    """None is lost or duplicated, and no step exceeds a limit."""
    finished = sorted(int(name) for name in drive(workload).finished)

    assert finished == list(range(len(workload.arrivals)))


@given(workloads, st.frozensets(st.integers(0, 10)))
def test_lost_batches_finish_too(workload: Workload, lost_batches: frozenset[int]) -> None:
    """A requeued request runs again, and finishes once."""
    lossy = replace(workload, lost_batches=lost_batches)

    finished = sorted(int(name) for name in drive(lossy).finished)

    assert finished == list(range(len(workload.arrivals)))


@given(workloads)
def test_order_is_first_come_first_served_but_for_waiting_solos(workload: Workload) -> None:
    """Leave out the solos and requests start in the order of arrival; so do the solos by themselves."""
    is_solo = [num_tokens > PREFILL.solo_tokens for _, num_tokens in workload.arrivals]
    started = [number for batch in batch_names(drive(workload)) for number in batch]

    assert [n for n in started if not is_solo[n]] == [n for n in range(len(is_solo)) if not is_solo[n]]
    assert [n for n in started if is_solo[n]] == [n for n in range(len(is_solo)) if is_solo[n]]


@given(workloads)
def test_a_solo_never_overtakes(workload: Workload) -> None:
    """Solos can be passed while they wait, but pass nobody."""
    started: set[int] = set()
    for batch in batch_names(drive(workload)):
        if workload.arrivals[batch[0]][1] > PREFILL.solo_tokens:
            assert started >= set(range(batch[0]))
        started |= set(batch)


@given(st.lists(st.integers(1, 32), max_size=30))
def test_light_load_waits_no_longer_than_max_wait(lengths: list[int]) -> None:
    """When every request finds idle groups, it starts within max_wait_s."""
    run = drive(Workload(2, [(0.1, num_tokens) for num_tokens in lengths], [1], 1e-4, frozenset()))

    for started_s, assignment in run.assignments:
        for request in assignment.batch.requests:
            assert started_s <= run.arrived_s[request.request_id] + PREFILL.max_wait_s


def test_a_stream_of_short_requests_does_not_starve_a_solo() -> None:
    """Two groups kept full by short batches: the solo starts once its group has drained."""
    arrivals = [(0.001, 8)] * 100 + [(0.0, 64)] + [(0.001, 8)] * 300

    run = drive(Workload(2, arrivals, [1], token_s=0.01, lost_batches=frozenset()))

    order = [batch[0] for batch in batch_names(run)]
    solo_idx = order.index(100)
    assert sum(1 for number in order[:solo_idx] if number > 100) <= 4
    assert len(order) == 401


@given(workloads)
def test_the_same_events_give_the_same_assignments(workload: Workload) -> None:
    """The policy is deterministic."""
    assert drive(workload).assignments == drive(workload).assignments


@settings(max_examples=200)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 6))
def test_wake_at_is_the_first_moment_assign_yields(lengths: list[int], num_groups: int, num_done: int) -> None:
    """Just before it there is nothing, at it there is something; None means never."""

    def scheduler() -> DualBatchScheduler:
        policy = DualBatchScheduler(PREFILL, num_groups, max_queued_requests=100, max_queued_tokens=10**6)
        for index, num_tokens in enumerate(lengths):
            policy.submit(Request(request_id=str(index), num_tokens=num_tokens, arrival_s=0.0), now=0.0)
        for made in policy.assign(0.0)[:num_done]:
            policy.done(made.group, made.batch, now=0.0)
        policy.assign(0.0)
        return policy

    wake_at = scheduler().wake_at(0.0)
    if wake_at is None:
        assert scheduler().assign(1e9) == []
    else:
        assert scheduler().assign(math.nextafter(wake_at, -math.inf)) == []
        assert scheduler().assign(wake_at) != []


@pytest.mark.parametrize("num_groups", [1, 3])
def test_crowd_at_one_moment_is_served(num_groups: int) -> None:
    """Two hundred requests at once, of every length, all finish."""
    arrivals = [(0.0, 1 + 7 * number % 64) for number in range(200)]

    assert len(drive(Workload(num_groups, arrivals, [1], 1e-3, frozenset())).finished) == 200
