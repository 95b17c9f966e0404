"""The open-loop client, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asap_ray.workload.client import Plan, Reply, Result, replay
from asap_ray.workload.trace import TraceRequest

Runner = Callable[[Coroutine[Any, Any, list[Result]]], list[Result]]


class SlowTarget:
    """Answers after a fixed time, in any number at once."""

    def __init__(self, first_token_s: float, rest_s: float = 0.0) -> None:
        self.first_token_s = first_token_s
        self.rest_s = rest_s
        self.prompts: list[list[int]] = []

    async def send(self, prompt_ids: list[int], max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        """One token, then the rest."""
        self.prompts.append(prompt_ids)
        await asyncio.sleep(self.first_token_s)
        on_first_token()
        await asyncio.sleep(self.rest_s * max_tokens)
        return Reply(200, ttft_parts_s={"queue_s": 0.5})


class BrokenTarget:
    """Never gets as far as a token."""

    def __init__(self, outcome: Reply | Exception) -> None:
        self.outcome = outcome

    async def send(self, _ids: list[int], _max_tokens: int, _on_first_token: Callable[[], None]) -> Reply:
        """Fail in the given way."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class BusyTarget:
    """Keeps the client's own machine busy, so that it falls behind."""

    async def send(self, _ids: list[int], _max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        """Five seconds of computing, then the token."""
        asyncio.get_running_loop().compute(5.0)  # type: ignore[attr-defined]
        on_first_token()
        return Reply(200)


def plan(*times_s: float, timeout_s: float = 100.0) -> Plan:
    """Requests of 10, 11, 12 ... tokens."""
    requests = [
        TraceRequest(timestamp_s=time_s, input_length=10 + index, output_length=1)
        for index, time_s in enumerate(times_s)
    ]
    return Plan(requests=requests, vocab_size=100, timeout_s=timeout_s)


def ignore(_: Result) -> None:
    """No progress wanted."""


def test_requests_go_out_on_schedule_while_others_are_open(run: Runner) -> None:
    """Answers take longer than the gaps; nothing waits for them."""
    results = run(replay(plan(0.0, 1.0, 2.0), SlowTarget(first_token_s=10.0), ignore))

    assert [(each.due_s, each.lateness_s, each.ttft_s) for each in results] == [
        (0.0, 0.0, 10.0),
        (1.0, 0.0, 10.0),
        (2.0, 0.0, 10.0),
    ]


def test_ttft_ends_at_the_first_token(run: Runner) -> None:
    """What follows it does not count."""
    (result,) = run(replay(plan(0.0), SlowTarget(first_token_s=2.0, rest_s=50.0), ignore))

    assert result.ttft_s == 2.0


def test_late_request_is_sent_at_once_and_its_ttft_counts_from_its_due_time(run: Runner) -> None:
    """The second was due at 1 s, left at 5 s when the client was free, and had its token at 10 s."""
    results = run(replay(plan(0.0, 1.0), BusyTarget(), ignore))

    assert (results[1].lateness_s, results[1].ttft_s) == (4.0, 9.0)


def test_prompts_are_those_of_the_trace(run: Runner) -> None:
    """Exact lengths, in the order of the plan."""
    target = SlowTarget(first_token_s=0.0)
    run(replay(plan(0.0, 0.0), target, ignore))

    assert [len(prompt) for prompt in target.prompts] == [10, 11]


def test_progress_sees_every_result_as_it_ends(run: Runner) -> None:
    """The callback is how an interrupted caller keeps what there is."""
    seen: list[Result] = []
    results = run(replay(plan(0.0, 1.0), SlowTarget(first_token_s=0.0), seen.append))

    assert seen == results


def test_servers_own_parts_are_kept(run: Runner) -> None:
    """Queue, attention and so on come with the reply."""
    (result,) = run(replay(plan(0.0), SlowTarget(first_token_s=0.0), ignore))

    assert result.ttft_parts_s == {"queue_s": 0.5}


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        (Reply(429, "the queue is full"), 429, "the queue is full"),
        (ConnectionError("refused"), 0, "ConnectionError: refused"),
        (Reply(200), 200, "the answer had no token"),
    ],
)
def test_failure_is_a_result(run: Runner, outcome: Reply | Exception, status: int, error: str) -> None:
    """Whatever a target does, the replay goes on and says what happened."""
    results = run(replay(plan(0.0, 1.0), BrokenTarget(outcome), ignore))

    assert [(each.status, each.error, each.ttft_s) for each in results] == [(status, error, None)] * 2


def test_silence_ends_at_the_timeout(run: Runner) -> None:
    """A request that is never answered does not hold the replay up."""
    (result,) = run(replay(plan(0.0, timeout_s=3.0), SlowTarget(first_token_s=1000.0), ignore))

    assert result.error == "no answer within 3 s"
