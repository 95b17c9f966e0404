"""What holds for every arrival pattern: driven in virtual time, event by event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.batch import Batch, Request, Sampling
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.order import HEAD_START_S
from asap_ray.scheduler.policies import POLICIES, policy_of
from asap_ray.spec import NUM_SLOTS, PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)


@dataclass(frozen=True)
class Workload:
    """Arrivals, and what the devices do with them."""

    num_groups: int
    arrivals: list[tuple[float, int]]  # (gap in seconds, tokens)
    answers: list[int]  # max_tokens of the requests, over and over
    token_s: float  # a batch takes this long per token
    lost_batches: frozenset[int]  # when these assignments, by number, would end, their group is lost and back at once
    leaving: frozenset[int] = frozenset()  # the first client of these assignments, by number, leaves when they start


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


def scheduler_of(name: str, num_groups: int) -> DualBatchScheduler:
    """A scheduler with room for what these tests need, its work in squares."""
    policy = policy_of(name, PREFILL, lambda past, now: now + now * (2 * past + now) / 16)
    return DualBatchScheduler(PREFILL, num_groups, max_queued_requests=1000, max_queued_tokens=10**6, policy=policy)


def drive(workload: Workload, name: str = "paper") -> Run:
    """Run a workload to its end, checking the limits at every step."""
    policy = scheduler_of(name, workload.num_groups)
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
            if ended in ends:
                _end(policy, run, workload, ends, ended)
        for assignment in policy.assign(now):
            end_s = now + workload.token_s * assignment.batch.num_tokens
            if any(each.past_tokens for each in assignment.batch.requests):  # the piece before is a layer ahead
                end_s = max([end_s, *(each[0] for each in ends if each[2].group == assignment.group)])
            ends.append((end_s, len(run.assignments), assignment))
            if len(run.assignments) in workload.leaving:
                policy.cancel(assignment.batch.requests[0].request_id)
            run.assignments.append((now, assignment))
        _check_limits(policy, workload.num_groups)
        assert policy.assign(now) == []
    return run


def _end(
    policy: DualBatchScheduler,
    run: Run,
    workload: Workload,
    ends: list[tuple[float, int, Assignment]],
    ended: tuple[float, int, Assignment],
) -> None:
    now, number, assignment = ended
    if number in workload.lost_batches:
        policy.mark_down(assignment.group)
        for lost in [each for each in ends if each[2].group == assignment.group]:
            ends.remove(lost)
            policy.requeue(lost[2].batch)
        policy.mark_up(assignment.group)
        return
    ends.remove(ended)
    policy.done(assignment.group, assignment.batch, now)
    run.finished += [request.request_id for request in assignment.batch.requests if not request.future_tokens]


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


@pytest.mark.parametrize("name", POLICIES)
@given(workloads)
def test_every_request_finishes_exactly_once(name: str, workload: Workload) -> None:
    """None is lost or duplicated, and no step exceeds a limit."""
    finished = sorted(int(name) for name in drive(workload, name).finished)

    assert finished == list(range(len(workload.arrivals)))


@pytest.mark.parametrize("name", POLICIES)
@given(workloads, st.frozensets(st.integers(0, 10)))
def test_lost_batches_finish_too(name: str, workload: Workload, lost_batches: frozenset[int]) -> None:
    """A requeued request runs again, and finishes once."""
    lossy = replace(workload, lost_batches=lost_batches)

    finished = sorted(int(name) for name in drive(lossy, name).finished)

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


@pytest.mark.parametrize("name", POLICIES)
@given(workloads)
def test_the_same_events_give_the_same_assignments(name: str, workload: Workload) -> None:
    """The policy is deterministic."""
    assert drive(workload, name).assignments == drive(workload, name).assignments


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=200)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 6))
def test_wake_at_is_the_first_moment_assign_yields(
    name: str, lengths: list[int], num_groups: int, num_done: int
) -> None:
    """Just before it there is nothing, at it there is something; None means never."""

    def scheduler() -> DualBatchScheduler:
        policy = scheduler_of(name, num_groups)
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


@given(workloads, st.frozensets(st.integers(0, 10)))
def test_pieces_of_a_prompt_run_in_order_on_one_group(workload: Workload, lost_batches: frozenset[int]) -> None:
    """And make up the prompt; one whose group is lost starts over."""
    run = drive(replace(workload, lost_batches=lost_batches), "asap")
    covered: dict[str, tuple[int, int]] = {}  # request -> (group, tokens so far)

    for _, assignment in run.assignments:
        for piece in assignment.batch.requests:
            if piece.past_tokens:
                assert covered[piece.request_id] == (assignment.group, piece.past_tokens)
            covered[piece.request_id] = (assignment.group, piece.past_tokens + piece.num_tokens)
    assert {int(name): num_tokens for name, (_, num_tokens) in covered.items()} == {
        number: num_tokens for number, (_, num_tokens) in enumerate(workload.arrivals)
    }


@given(workloads, st.frozensets(st.integers(0, 10)))
def test_a_group_is_told_to_forget_what_it_keeps_for_nobody(workload: Workload, leaving: frozenset[int]) -> None:
    """Once, and of nothing else. It never keeps more than two prompts: one it was not yet told of, and the present."""
    run = drive(replace(workload, leaving=leaving), "asap")
    kept: list[set[str]] = [set() for _ in range(workload.num_groups)]

    for _, assignment in run.assignments:
        of_group = kept[assignment.group]
        assert of_group >= set(assignment.batch.forget)
        of_group -= set(assignment.batch.forget)
        for piece in assignment.batch.requests:
            assert not piece.past_tokens or piece.request_id in of_group
            (of_group.add if piece.future_tokens else of_group.discard)(piece.request_id)
        assert len(of_group) <= NUM_SLOTS


@given(workloads)
def test_nobody_is_passed_by_what_comes_after_the_head_start(workload: Workload) -> None:
    """Of prompts that stay whole: who came `bound_s` later starts later, however short it is (the bound of `asap`)."""
    run = drive(workload, "asap")
    started = [int(each.request_id) for _, made in run.assignments for each in made.batch.requests if each.is_whole]

    for place, number in enumerate(started):
        for later in started[place + 1 :]:
            assert run.arrived_s[str(number)] < run.arrived_s[str(later)] + HEAD_START_S


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    """Short prompts come faster than one group can take them: the long one begins after those of its head start."""
    arrivals = [(0.0, 24), (0.0, 24), (0.0, 64), *[(0.02, 8)] * 800]
    run = drive(Workload(1, arrivals, [1], token_s=0.01, lost_batches=frozenset()), "asap")

    began = next(place for place, (_, made) in enumerate(run.assignments) if made.batch.requests[0].request_id == "2")
    passed = [each.request_id for _, made in run.assignments[:began] for each in made.batch.requests]
    assert len(passed) > 200
    assert max(run.arrived_s[name] for name in passed) < HEAD_START_S
