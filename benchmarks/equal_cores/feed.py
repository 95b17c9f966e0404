"""One driver for all systems: requests at their times to a policy, its batches to processes, tokens back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final, Protocol

from equal_cores.devices import Fleet

from asap_ray.backends.host_lockstep import STEP_DONE
from asap_ray.batch import Request
from asap_ray.errors import DeviceLost, PeerTimeout
from asap_ray.messages import Events, Step, decode, encode
from asap_ray.scheduler.baselines import LockstepScheduler
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler

SILENCE_S: Final = 120.0
"""No pass takes that long; whoever is silent for longer is lost."""


class Feed(Protocol):
    """A policy and the processes it gives work to."""

    @property
    def is_busy(self) -> bool:
        """Whether a process has not said yet that it is done."""

    def submit(self, request: Request, now: float) -> None:
        """A request has arrived."""

    def advance(self, now: float) -> None:
        """Send out whatever may start now."""

    def wake_at(self, now: float) -> float | None:
        """When `advance` has something if nothing else happens."""

    def receive(self, worker: int, now: float) -> list[str]:
        """Take one message of a process; the requests it answers."""


class AsyncFeed:
    """The asynchronous engine: a batch to a DP group as soon as one has a free slot."""

    def __init__(self, pipes: Sequence[Connection], scheduler: DualBatchScheduler) -> None:
        self._pipes = pipes
        self._scheduler = scheduler
        self._running: dict[tuple[str, int], Assignment] = {}

    @property
    def is_busy(self) -> bool:
        """See `Feed`."""
        return bool(self._running)

    def submit(self, request: Request, now: float) -> None:
        """See `Feed`."""
        self._scheduler.submit(request, now)

    def advance(self, now: float) -> None:
        """See `Feed`."""
        for assignment in self._scheduler.assign(now):
            first = assignment.batch.requests[0]
            self._running[first.request_id, first.past_tokens] = assignment
            self._pipes[assignment.group].send_bytes(encode(assignment.batch))

    def wake_at(self, now: float) -> float | None:
        """See `Feed`."""
        return self._scheduler.wake_at(now)

    def receive(self, worker: int, now: float) -> list[str]:
        """See `Feed`."""
        request_id, past_tokens, events = self._pipes[worker].recv()
        ended = self._running.pop((request_id, past_tokens))
        self._scheduler.done(ended.group, ended.batch, now)
        return [token.request_id for token in decode(Events, events).tokens]


class SyncFeed:
    """A synchronous system: a share of each step to every worker, the next step when all are done."""

    def __init__(self, pipes: Sequence[Connection], policy: LockstepScheduler) -> None:
        self._pipes = pipes
        self._policy = policy
        self._num_working = 0

    @property
    def is_busy(self) -> bool:
        """See `Feed`."""
        return self._num_working > 0

    def submit(self, request: Request, now: float) -> None:
        """See `Feed`."""
        self._policy.submit(request, now)

    def advance(self, now: float) -> None:
        """See `Feed`."""
        if self._num_working or (shares := self._policy.step(now)) is None:
            return
        self._num_working = len(self._pipes)
        for pipe, share in zip(self._pipes, shares, strict=True):
            pipe.send_bytes(encode(Step(share)))

    def wake_at(self, now: float) -> float | None:
        """See `Feed`."""
        return None if self._num_working else self._policy.wake_at(now)

    def receive(self, worker: int, now: float) -> list[str]:  # noqa: ARG002
        """See `Feed`."""
        message = self._pipes[worker].recv_bytes()
        if message == STEP_DONE:
            self._num_working -= 1
            return []
        return [token.request_id for token in decode(Events, message).tokens]


@dataclass(frozen=True, slots=True)
class Played:
    """One load on one system. Idle processes wait in the kernel, so their CPU time is that of this load."""

    ttfts_s: dict[str, float]  # by request, from when it was due
    wall_s: float  # from the start of the trace to the last answer
    cpu_s: float  # of all processes of the system
    duty_s: float  # of their compute streams


def play(fleet: Fleet, feed: Feed, requests: Sequence[Request]) -> Played:
    """Submit each request when it is due, however late the answers are, and wait for all.

    Raises:
        DeviceLost: a process ended.
        PeerTimeout: nobody says anything, though requests are out.
    """
    cpu_s, duty_s = fleet.cpu_s(), fleet.duty_s()
    waiting = deque(requests)
    due_s = {request.request_id: request.arrival_s for request in requests}
    ttfts_s: dict[str, float] = {}
    start_s = time.monotonic()
    wall_s = 0.0
    while len(ttfts_s) < len(requests) or feed.is_busy:
        now = time.monotonic() - start_s
        while waiting and waiting[0].arrival_s <= now:
            feed.submit(waiting.popleft(), now)
        feed.advance(now)
        for answered in _heard(fleet, feed, _patience_s(feed, waiting, now), start_s):
            wall_s = time.monotonic() - start_s
            ttfts_s[answered] = wall_s - due_s[answered]
    return Played(ttfts_s, wall_s, fleet.cpu_s() - cpu_s, fleet.duty_s() - duty_s)


def _patience_s(feed: Feed, waiting: deque[Request], now: float) -> float | None:
    """Until something is due; None if only a message can bring anything."""
    times_s = [request.arrival_s for request in list(waiting)[:1]]
    if (wake_at := feed.wake_at(now)) is not None:
        times_s.append(wake_at)
    return max(0.0, min(times_s) - now) if times_s else None


def _heard(fleet: Fleet, feed: Feed, patience_s: float | None, start_s: float) -> list[str]:
    """Requests answered by the messages that are here, or come first."""
    ready = wait(fleet.pipes, SILENCE_S if patience_s is None else patience_s)
    if not ready and patience_s is None:
        raise PeerTimeout(f"no device has said anything for {SILENCE_S:g} s")
    answered = []
    for pipe in ready:
        assert isinstance(pipe, Connection), "only pipes are waited for"
        try:
            answered += feed.receive(fleet.pipes.index(pipe), time.monotonic() - start_s)
        except EOFError:
            raise DeviceLost(f"{fleet.name_of(pipe)} ended; its own output says why") from None
    return answered
