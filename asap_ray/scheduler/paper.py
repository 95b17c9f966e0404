"""The paper's policy (3.3): first come, first served, length-aware batches, long ones alone on a DP group."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.batch import Batch, Request
from asap_ray.scheduler.length_aware import LengthAwareBatcher
from asap_ray.scheduler.policy import Group
from asap_ray.scheduler.shares import Cost, tokens
from asap_ray.scheduler.work import by_work, least_work
from asap_ray.spec import PrefillSpec


class Paper:
    """`Policy`: the group with the least work takes the next batch, so an idle one comes first.

    A solo batch runs on a group that holds nothing else; while it waits, the group that will be free
    soonest is kept for it, and what came later goes to the others.
    """

    def __init__(self, prefill: PrefillSpec, cost: Cost = tokens) -> None:
        self._prefill = prefill
        self._cost = cost
        self._queue = LengthAwareBatcher(prefill)

    @property
    def num_requests(self) -> int:
        """See `Policy`."""
        return self._queue.num_requests

    @property
    def num_tokens(self) -> int:
        """See `Policy`."""
        return self._queue.num_tokens

    @property
    def longest_prompt(self) -> int:
        """See `Policy`: a prompt is one batch; the paper sends longer ones to instances of their own (5.1)."""
        return self._prefill.max_tokens

    def has(self, request_id: str) -> bool:
        """See `Policy`."""
        return request_id in self._queue

    def tokens_before(self, request: Request) -> int:  # noqa: ARG002
        """See `Policy`: all of them, but for what passes a solo that waits."""
        return self._queue.num_tokens

    def push(self, request: Request, now: float) -> None:
        """See `Policy`."""
        self._queue.push(request, now)

    def remove(self, request_id: str) -> bool:
        """See `Policy`. A group that was kept for it is free for what came later."""
        return self._queue.remove(request_id)

    def take(self, now: float, groups: Sequence[Group]) -> tuple[Group, Batch] | None:
        """See `Policy`."""
        candidates, num_skipped = self._candidates(groups)
        for group in by_work(candidates, self._cost):
            if batch := self._queue.peek(now, group, num_skipped):
                self._queue.take(batch)
                return group, batch
        return None

    def wake_at(self, now: float, groups: Sequence[Group]) -> float | None:  # noqa: ARG002
        """See `Policy`."""
        candidates, num_skipped = self._candidates(groups)
        times = [self._queue.closes_at(group, num_skipped) for group in candidates]
        return min((each for each in times if each is not None), default=None)

    def ended(self, batch: Batch) -> None:
        """See `Policy`."""

    def put_back(self, prompts: Sequence[Request]) -> None:
        """See `Policy`."""
        self._queue.push_front(prompts)

    def abandon(self, group: int) -> None:
        """See `Policy`: a prompt is whole in its batch."""

    def _candidates(self, groups: Sequence[Group]) -> tuple[list[Group], int]:
        """The groups that can take the next batch, and how many solo requests stand before it.

        Each of those waits for a group that is kept for it. No solo waits for ever: the work of
        the group kept for the first only shrinks.
        """
        left = [group for group in groups if group.is_up]
        num_skipped = 0
        while left and self._queue.is_solo(num_skipped) and all(group.in_flight for group in left):
            left.remove(least_work(left, self._cost))
            num_skipped += 1
        return [group for group in left if self._has_room(group)], num_skipped

    def _has_room(self, group: Group) -> bool:
        runs_solo = any(self._prefill.is_solo(batch.num_tokens) for batch in group.in_flight)
        return group.num_free > 0 and not runs_solo
