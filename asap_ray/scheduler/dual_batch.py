"""Dual-batch interleaving (3.3.2): which batch runs on which DP group, two at a time.

A pure policy: time is an argument, and nothing here waits. The caller runs what `assign` returns,
ends every assignment with `done` or `requeue`, and calls `assign` again then, after `submit` and
`cancel`, and at `wake_at`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from asap_ray.batch import Batch, Request
from asap_ray.errors import ConfigError, Overloaded, RequestError
from asap_ray.scheduler.admission import Admission, refill
from asap_ray.scheduler.drain_rate import DrainRate
from asap_ray.scheduler.length_aware import LengthAwareBatcher
from asap_ray.spec import PrefillSpec


@dataclass(frozen=True, slots=True)
class Assignment:
    """Run this batch on this DP group, now."""

    group: int
    batch: Batch


@dataclass(slots=True)
class _Group:
    index: int
    is_up: bool = True
    in_flight: list[Batch] = field(default_factory=list)
    num_free: int = 0  # batches it may still take in this `assign`


def num_tokens(batch: Batch) -> float:
    """The default cost of a batch. A sum of squares is closer to attention time (2.2.1)."""
    return batch.num_tokens


class DualBatchScheduler:
    """One bounded queue in front of all DP groups of an instance.

    A group holds at most `NUM_SLOTS` batches and by default gets the next one as soon as one is done; no batch
    waits for a partner. The group with the least work takes it, so an idle one comes first. A solo
    batch runs on a group that holds nothing else; while it waits, the group that will be free
    soonest is kept for it, and what came later goes to the others.
    """

    def __init__(
        self,
        prefill: PrefillSpec,
        num_groups: int,
        max_queued_requests: int,
        max_queued_tokens: int,
        cost: Callable[[Batch], float] = num_tokens,
        admission: Admission = refill,
    ) -> None:
        """`cost` is the work of a batch, positive, in any unit; `admission` says when a group has room.

        Raises:
            ConfigError: the queue could not admit the longest prompt.
        """
        if min(num_groups, max_queued_requests) < 1:
            raise ConfigError(f"num_groups={num_groups}, max_queued_requests={max_queued_requests}: at least 1 each")
        if max_queued_tokens < prefill.max_tokens:
            raise ConfigError(
                f"max_queued_tokens={max_queued_tokens} is below max_tokens={prefill.max_tokens}; "
                "the longest prompt could never be queued"
            )
        self._prefill = prefill
        self._max_queued_requests = max_queued_requests
        self._max_queued_tokens = max_queued_tokens
        self._cost = cost
        self._admission = admission
        self._queue = LengthAwareBatcher(prefill)
        self._groups = [_Group(index) for index in range(num_groups)]
        self._drain_rate = DrainRate()
        self._busy_since_s = 0.0

    @property
    def num_queued(self) -> int:
        """Requests that wait for a group."""
        return self._queue.num_requests

    @property
    def num_queued_tokens(self) -> int:
        """Their prompt tokens."""
        return self._queue.num_tokens

    def in_flight(self, group: int) -> tuple[Batch, ...]:
        """Batches assigned to a group and not ended yet."""
        return tuple(self._groups[group].in_flight)

    def check(self, request: Request) -> None:
        """Refuse what could never be queued, or not beside what is queued or runs.

        Raises:
            RequestError: the length is not in 1..max_tokens, or the id is in use.
        """
        self._queue.check(request)
        running = (each for group in self._groups for batch in group.in_flight for each in batch.requests)
        if any(each.request_id == request.request_id for each in running):
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")

    def submit(self, request: Request, now: float) -> None:
        """Queue a request.

        Raises:
            Overloaded: the queue is full; says when it will have drained.
            RequestError: see `check`.
        """
        self.check(request)
        if (
            self.num_queued >= self._max_queued_requests
            or self.num_queued_tokens + request.num_tokens > self._max_queued_tokens
        ):
            raise Overloaded(
                f"the queue holds {self.num_queued} of {self._max_queued_requests} requests and "
                f"{self.num_queued_tokens} of {self._max_queued_tokens} tokens; "
                f"there is no room for a prompt of {request.num_tokens}",
                retry_after_s=self._drain_rate.seconds(self.num_queued_tokens),
            )
        self._queue.push(request, now)

    def cancel(self, request_id: str) -> bool:
        """Drop a request if it still waits; whether it did. A running batch finishes.

        A group that was kept for it is free for what came later.
        """
        return self._queue.remove(request_id)

    def assign(self, now: float) -> list[Assignment]:
        """Every batch that can start now; they count as in flight from here on."""
        assignments = []
        self._count_free()
        while assignment := self._next(now):
            assignments.append(assignment)
            self._queue.take(assignment.batch)
            if not any(group.in_flight for group in self._groups):
                self._busy_since_s = now
            group = self._groups[assignment.group]
            group.in_flight.append(assignment.batch)
            group.num_free -= 1
        return assignments

    def wake_at(self, now: float) -> float | None:
        """When `assign` has a batch if nothing else happens; None if only an event can bring one."""
        self._count_free()
        groups, num_skipped = self._candidates()
        closes_at = self._queue.closes_at(num_skipped) if groups else None
        return None if closes_at is None else max(now, closes_at)

    def done(self, group: int, batch: Batch, now: float) -> None:
        """A batch ended, well or not; its slot is free."""
        self._groups[group].in_flight.remove(batch)
        self._drain_rate.add(batch.num_tokens, now - self._busy_since_s)
        self._busy_since_s = now

    def requeue(self, batch: Batch) -> None:
        """Take a batch from its group, which was lost, back to the head of the queue.

        The bound of the queue does not apply: these requests were admitted before.
        """
        group = next(group for group in self._groups if batch in group.in_flight)
        group.in_flight.remove(batch)
        self._queue.push_front(batch)

    def mark_down(self, group: int) -> None:
        """Assign nothing more to a group; what it runs still ends with `done` or `requeue`."""
        self._groups[group].is_up = False

    def mark_up(self, group: int) -> None:
        """The group takes batches again."""
        self._groups[group].is_up = True

    def _count_free(self) -> None:
        for group in self._groups:
            group.num_free = self._admission(len(group.in_flight))

    def _next(self, now: float) -> Assignment | None:
        groups, num_skipped = self._candidates()
        batch = self._queue.peek(now, num_skipped) if groups else None
        return Assignment(min(groups, key=self._work).index, batch) if batch else None

    def _candidates(self) -> tuple[list[_Group], int]:
        """The groups that can take the next batch, and how many solo requests stand before it.

        Each of those waits for a group that is kept for it. No solo waits for ever: the work of
        the group kept for the first only shrinks.
        """
        groups = [group for group in self._groups if group.is_up]
        num_skipped = 0
        while groups and self._queue.is_solo(num_skipped) and all(group.in_flight for group in groups):
            groups.remove(min(groups, key=self._work))
            num_skipped += 1
        return [group for group in groups if self._has_room(group)], num_skipped

    def _work(self, group: _Group) -> tuple[int, float]:
        """Idle groups first, whatever the cost function says; then the least work."""
        return min(len(group.in_flight), 1), sum(self._cost(batch) for batch in group.in_flight)

    def _has_room(self, group: _Group) -> bool:
        runs_solo = any(self._prefill.is_solo(batch.num_tokens) for batch in group.in_flight)
        return group.num_free > 0 and not runs_solo
