"""Prompts that would be late are refused at once (`slo_ttft_s`), by what the instance itself took lately."""

from __future__ import annotations

import pytest

from asap_ray.batch import Request
from asap_ray.errors import Overloaded
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.scheduler.forecast import HALF_LIFE_S, Forecast
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.shares import tokens
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)


def prompt(name: str, num_tokens: int = 8, arrival_s: float = 0.0) -> Request:
    """A prompt; eight tokens close a batch."""
    return Request(request_id=name, num_tokens=num_tokens, arrival_s=arrival_s)


def taught(policy: str = "paper", slo_ttft_s: float = 2.5) -> DualBatchScheduler:
    """One group, an objective, and a first prompt of 8 tokens that took from 0 to 1 s."""
    scheduler = DualBatchScheduler(
        PREFILL,
        1,
        max_queued_requests=100,
        max_queued_tokens=1000,
        policy=policy_of(policy, PREFILL, tokens),
        slo_ttft_s=slo_ttft_s,
    )
    scheduler.submit(prompt("first"), 0.0)
    (assignment,) = scheduler.assign(0.0)
    scheduler.computed(assignment.batch, 1.0)
    scheduler.done(0, assignment.batch, 1.0)
    return scheduler


def admitted(scheduler: DualBatchScheduler, num_prompts: int, num_tokens: int = 4) -> int:
    """How many of some prompts that come at 1 s, as short as none before, are taken."""
    taken = 0
    for number in range(num_prompts):
        try:
            scheduler.submit(prompt(f"{num_tokens}:{number}", num_tokens, arrival_s=1.0), 1.0)
        except Overloaded:
            continue
        taken += 1
    return taken


def test_as_many_are_admitted_as_the_rate_answers_in_time() -> None:
    """8 tokens a second make five prompts of 4 tokens in 2.5 s."""
    assert admitted(taught(), 10) == 5


def test_what_runs_counts_too() -> None:
    """Two batches of 8 in flight are 2 s."""
    scheduler = taught()
    for name in ("a", "b"):
        scheduler.submit(prompt(name, 7, arrival_s=1.0), 1.0)
    assert len(scheduler.assign(1.005)) == 1

    assert admitted(scheduler, 10) == 1


def test_a_refusal_says_what_was_expected_and_when_it_is_worth_while() -> None:
    """Five prompts of half a second wait: a sixth would be half a second late."""
    scheduler = taught()
    admitted(scheduler, 5)
    with pytest.raises(Overloaded, match=r"4 tokens is expected within 3\.00 s; slo_ttft_s=2\.5 refuses") as refused:
        scheduler.submit(prompt("sixth", 4, arrival_s=1.0), 1.0)

    assert refused.value.retry_after_s == 0.5


def test_time_before_the_queue_counts() -> None:
    """A prompt that took 3 s to tokenize is late already."""
    scheduler = taught()
    admitted(scheduler, 1)
    with pytest.raises(Overloaded):
        scheduler.submit(prompt("slow", 4, arrival_s=-2.0), 1.0)


def test_an_idle_instance_refuses_nobody() -> None:
    """Eight seconds' worth: nobody gains if it is refused, and it teaches how long it really takes."""
    scheduler = taught()
    scheduler.submit(prompt("long", 64, arrival_s=1.0), 1.0)

    assert scheduler.num_queued == 1


def test_short_prompts_wait_for_what_goes_before_them_only() -> None:
    """Under `asap` a prompt of 4 tokens passes one of 24, under `paper` it waits for 3 s."""
    outcomes = []
    for policy in ("paper", "asap"):
        scheduler = taught(policy)
        scheduler.submit(prompt("long", 24, arrival_s=1.0), 1.0)
        outcomes.append(admitted(scheduler, 1))

    assert outcomes == [0, 1]


def test_without_an_objective_nobody_is_refused() -> None:
    """Whoever finds room in the queue is served, however late."""
    scheduler = DualBatchScheduler(PREFILL, 1, max_queued_requests=100, max_queued_tokens=1000)

    assert admitted(scheduler, 100) == 100


def test_what_prompts_of_a_length_took_corrects_the_next_ones() -> None:
    """Ten that came 4 s later than their backlog: one with a backlog of 1 s would be late at an objective of 4 s."""
    forecast = Forecast(slo_ttft_s=4.0)
    for number in range(10):
        forecast.admitted(prompt(str(number)), 1.0, 0.0)
        forecast.answered(prompt(str(number)), 5.0)
    forecast.check(prompt("other length", 32, arrival_s=5.0), 1.0, 5.0)

    with pytest.raises(Overloaded):
        forecast.check(prompt("same length", arrival_s=5.0), 1.0, 5.0)


def test_what_is_not_known_surely_keeps_a_distance() -> None:
    """Ten that came 1 s early or late: an expectation of 3 s is refused at an objective of 4 s, one of 1 s is not."""
    forecast = Forecast(slo_ttft_s=4.0)
    for number in range(10):
        forecast.admitted(prompt(str(number)), 2.0, 0.0)
        forecast.answered(prompt(str(number)), 1.0 if number % 2 else 3.0)
    forecast.check(prompt("early", arrival_s=3.0), 1.0, 3.0)

    with pytest.raises(Overloaded):
        forecast.check(prompt("late", arrival_s=3.0), 3.0, 3.0)


def test_a_bad_minute_is_forgotten() -> None:
    """Four half-lives after it an expectation of 1 s is in time again."""
    forecast = Forecast(slo_ttft_s=4.0)
    forecast.admitted(prompt("bad"), 1.0, 0.0)
    forecast.answered(prompt("bad"), 60.0)
    later_s = 60.0 + 4 * HALF_LIFE_S
    with pytest.raises(Overloaded):
        forecast.check(prompt("soon", arrival_s=60.0), 1.0, 60.0)

    forecast.check(prompt("later", arrival_s=later_s), 1.0, later_s)


@pytest.mark.parametrize("when", ["queued before", "came meanwhile"])
def test_an_outage_does_not_make_a_healthy_group_refuse(when: str) -> None:
    """A group that was away for 20 s answered late whoever waited: that says nothing of who comes after."""
    scheduler = taught(slo_ttft_s=5.0)
    if when == "came meanwhile":
        scheduler.mark_down(0)
    for number in range(3):
        scheduler.submit(prompt(f"waits {number}", arrival_s=1.5), 1.5)
    scheduler.mark_down(0)
    scheduler.mark_up(0)
    now, running = 21.5, scheduler.assign(21.5)
    while running:
        batch = running.pop(0).batch
        now += 1.0
        scheduler.computed(batch, now)
        scheduler.done(0, batch, now)
        running += scheduler.assign(now)
    scheduler.submit(prompt("next", arrival_s=now), now)
    scheduler.submit(prompt("after it", arrival_s=now), now)

    assert scheduler.num_queued == 2


@pytest.mark.parametrize("how", ["answered", "left", "lost"])
def test_nothing_is_kept_of_prompts_that_are_over(how: str) -> None:
    """Else a long run would fill the memory."""
    scheduler = taught()
    scheduler.submit(prompt("next", arrival_s=1.0), 1.0)
    if how == "left":
        scheduler.cancel("next")
    else:
        (assignment,) = scheduler.assign(1.0)
        if how == "lost":
            scheduler.requeue(assignment.batch)
        else:
            scheduler.computed(assignment.batch, 2.0)

    assert scheduler._forecast is not None
    assert scheduler._forecast._due_s == {}
