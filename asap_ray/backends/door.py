"""A DP group's door: batches come in from the scheduler, tokens go out (`BatchQueue`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import Final

from asap_ray.backends.threads import ThreadRuntime
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.errors import Closed
from asap_ray.messages import decode, encode
from asap_ray.protocol import NOBODY, Collective
from asap_ray.spec import PrefillSpec

Deliver = Callable[[Batch, tuple[Token, ...], Stamps], None]

_STOP: Final = b"stop"
_IDLE_S: Final = 1.0
"""An idle leader says so this often, so that its followers' collectives stay inside their deadline."""


class Door:
    """The queue of a group whose T is 1, and of rank 0 otherwise. `put` may be called from any thread."""

    def __init__(self, runtime: ThreadRuntime, prefill: PrefillSpec, deliver: Deliver) -> None:
        self._runtime = runtime
        self._prefill = prefill
        self._deliver = deliver
        self._batches: deque[Batch] = deque()
        self._unfinished: set[str] = set()  # requests that get tokens yet
        self._unwanted: set[str] = set()  # those of them that nobody waits for

    def put(self, batch: Batch) -> None:
        """Append a batch; the loop takes it at its next turn."""
        with self._runtime.changed:
            self._batches.append(batch)
            self._unfinished |= {request.request_id for request in batch.requests if not request.future_tokens}
            self._runtime.changed.notify_all()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Nobody waits for these: each ends with its next token. Those that are not here are none of its business."""
        with self._runtime.changed:
            self._unwanted |= self._unfinished.intersection(request_ids)

    def take(self, occupied: tuple[Batch, ...], timeout_s: float | None) -> Batch | None:
        """The head if it may run beside `occupied`; with nothing occupied, wait for one up to the timeout."""
        with self._runtime.changed:
            self._runtime.wait_for(lambda: bool(occupied or self._batches), timeout_s)
            if not self._batches or not self._prefill.may_share(b.num_tokens for b in (self._batches[0], *occupied)):
                return None
            return self._batches.popleft()

    async def admit(self, occupied: tuple[Batch, ...]) -> Batch | None:
        """See `BatchQueue`."""
        return self.take(occupied, timeout_s=None)

    def unwanted(self) -> Set[str]:
        """See `BatchQueue`."""
        with self._runtime.changed:
            return frozenset(self._unwanted)

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """See `BatchQueue`."""
        finished = {token.request_id for token in tokens if token.finish_reason}
        with self._runtime.changed:
            self._unfinished -= finished
            self._unwanted -= finished
        self._deliver(batch, tokens, stamps)


class FollowedDoor:
    """The door of a group with T > 1: rank 0's door decides, the other ranks follow its log."""

    def __init__(self, collective: Collective, leader: Door | None) -> None:
        self._collective = collective
        self._leader = leader

    async def admit(self, occupied: tuple[Batch, ...]) -> Batch | None:
        """See `BatchQueue`; one broadcast a decision, so every rank takes the same turn."""
        while True:
            decision = self._collective.broadcast(self._decide(self._leader, occupied) if self._leader else None)
            if decision == _STOP:
                raise Closed("the group's leader is stopping")
            if decision:
                return decode(Batch, decision)
            if occupied:
                return None

    def unwanted(self) -> Set[str]:
        """What rank 0's door says; the stage tells the others with its tokens."""
        return self._leader.unwanted() if self._leader else NOBODY

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """Rank 0 alone answers."""
        if self._leader:
            await self._leader.deliver(batch, tokens, stamps)

    @staticmethod
    def _decide(leader: Door, occupied: tuple[Batch, ...]) -> bytes:
        try:
            batch = leader.take(occupied, _IDLE_S)
        except Closed:
            return _STOP
        return encode(batch) if batch else b""
