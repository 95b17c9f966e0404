"""The schedulers of synchronous systems (5.1): what every DP group runs in the next global step.

Pure policies: time is an argument, and nothing here waits. The caller runs what `step` returns on all
groups at once and calls `step` again when all have finished, after `submit` while nothing runs, and at
`wake_at`.
"""

from __future__ import annotations

from dataclasses import dataclass

from asap_ray.batch import Batch, Request
from asap_ray.errors import ConfigError
from asap_ray.scheduler.order import ShortestFirst
from asap_ray.scheduler.shares import Chunks, Cost, Filling, Halves, Split, undivided
from asap_ray.scheduler.step_queues import BacklogQueue, GlobalQueue, GroupQueues, StepQueue


class LockstepScheduler:
    """A queue, a wait for company and a split into micro-batches: every baseline is made of these three.

    Unless every group has something to run, a step waits `delay_s` for more, counted from the moment it could
    have begun: then fewer steps go by with idle groups (SGLang's prefill delayer).
    """

    def __init__(self, queue: StepQueue, num_groups: int, split: Split = undivided, delay_s: float = 0.0) -> None:
        """Raises ConfigError: there is no group, or the delay is negative."""
        if num_groups < 1 or delay_s < 0:
            raise ConfigError(f"num_groups={num_groups} must be at least 1 and delay_s={delay_s} at least 0")
        self._queue = queue
        self._num_groups = num_groups
        self._split = split
        self._delay_s = delay_s
        self._closes_at: float | None = None  # when the step that waits for company goes as it is

    def submit(self, request: Request, now: float) -> None:  # noqa: ARG002
        """Queue a whole prompt."""
        self._queue.push(request)

    def step(self, now: float) -> list[tuple[Batch, ...]] | None:
        """The micro-batches of each group, as many on all, empty where there is no work; None if none may start now.

        The step before has finished.
        """
        num_ready = self._queue.num_ready
        if not num_ready:
            return None
        if num_ready < self._num_groups:
            self._closes_at = now + self._delay_s if self._closes_at is None else self._closes_at
            if now < self._closes_at:
                return None
        self._closes_at = None
        return self._split(self._queue.take())

    def wake_at(self, now: float) -> float | None:
        """When `step` has one if nothing else happens; None if only a request can bring one."""
        return None if self._closes_at is None else max(now, self._closes_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strong:
    """Settings of `strong`: the best of the sweep in docs/baselines.md."""

    budget_tokens: int = 8192  # a group's longest step is as much work as one prompt this long
    least_tokens: int = 3072  # and its shortest, while little waits
    backlog_part: float = 0.3  # of the work that waits, a step does this
    chunk_tokens: int = 8192  # no piece is longer
    overlap_tokens: int = 4096  # steps this long run as two micro-batches
    delay_s: float = 0.0  # a wait for company costs more than it gains
    token_s: float = 0.0  # standing lost per token of a prompt; 0 is first come, first served


def default(num_groups: int, budget_tokens: int) -> LockstepScheduler:
    """Batches of similar total token counts, one queue: the paper's Default."""
    return LockstepScheduler(GlobalQueue(num_groups, Chunks(budget_tokens)), num_groups)


def default_per_group(num_groups: int, budget_tokens: int) -> LockstepScheduler:
    """Default with a queue a group, chosen on arrival, as vLLM does."""
    return LockstepScheduler(GroupQueues(num_groups, Chunks(budget_tokens)), num_groups)


def chunked(num_groups: int, budget_tokens: int, chunk_tokens: int) -> LockstepScheduler:
    """Default on chunks of long prompts, one after the other: the paper's ChunkedPrefill."""
    return LockstepScheduler(GlobalQueue(num_groups, Chunks(budget_tokens, chunk_tokens)), num_groups)


def chunked_per_group(num_groups: int, budget_tokens: int, chunk_tokens: int) -> LockstepScheduler:
    """ChunkedPrefill with a queue a group, chosen on arrival, as vLLM does."""
    return LockstepScheduler(GroupQueues(num_groups, Chunks(budget_tokens, chunk_tokens)), num_groups)


def strong(num_groups: int, strong: Strong, cost: Cost) -> LockstepScheduler:
    """What a synchronous system can do today: steps of equal attention time, cut to fit, overlapped, aligned.

    `cost` is the attention time of a piece, squares included.
    """
    cut = Filling(cost(0, strong.budget_tokens), strong.chunk_tokens, cost=cost)
    queue = BacklogQueue(
        num_groups, cut, cost(0, strong.least_tokens), strong.backlog_part, ShortestFirst(strong.token_s)
    )
    return LockstepScheduler(queue, num_groups, Halves(cost, strong.overlap_tokens), strong.delay_s)
