"""Length-aware batching (3.3.1): first come first served, until the MoE stage has enough tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from asap_ray.batch import Batch, Request
from asap_ray.scheduler.policy import Group
from asap_ray.spec import PrefillSpec


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    full_at: float  # from here on its batch goes as it is


class LengthAwareBatcher:
    """The queue of one instance. Batches are cut when taken, not when their requests arrive.

    A batch is closed once it has `inflection_tokens`, once the next request does not fit under
    `solo_tokens`, or once its oldest request waited `max_wait_s`. A longer request is a batch alone.
    So that memory is bounded, the `kv_tokens` of a batch are at most `max_tokens`, unless a single request has more.
    """

    def __init__(self, prefill: PrefillSpec) -> None:
        self._prefill = prefill
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._num_tokens = 0

    @property
    def num_requests(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def num_tokens(self) -> int:
        """Their prompt tokens."""
        return self._num_tokens

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of this id waits."""
        return request_id in self._waiting

    def push(self, request: Request, now: float) -> None:
        """Append a request."""
        self._waiting[request.request_id] = _Waiting(request, now + self._prefill.max_wait_s)
        self._num_tokens += request.num_tokens

    def push_front(self, requests: Sequence[Request]) -> None:
        """Put requests back at the head, in their order; they have waited enough."""
        for request in reversed(requests):
            self._waiting[request.request_id] = _Waiting(request, float("-inf"))
            self._waiting.move_to_end(request.request_id, last=False)
            self._num_tokens += request.num_tokens

    def remove(self, request_id: str) -> bool:
        """Drop a request that still waits; whether it did."""
        waiting = self._waiting.pop(request_id, None)
        self._num_tokens -= waiting.request.num_tokens if waiting else 0
        return waiting is not None

    def is_solo(self, skip: int) -> bool:
        """Whether the request behind the first `skip` needs a group of its own."""
        request = next(self._behind(skip), None)
        return request is not None and self._prefill.is_solo(request.num_tokens)

    def peek(self, now: float, group: Group, skip: int = 0) -> Batch | None:
        """The next closed batch for a group, of those behind the first `skip` requests; None if there is none yet."""
        batch, closed = self._cut(group, skip)
        overdue = batch.requests and now >= self._full_at(batch)
        return batch if closed or overdue else None

    def closes_at(self, group: Group, skip: int = 0) -> float | None:
        """When the next batch closes without further requests, at the latest; None if nothing waits for this group."""
        batch, closed = self._cut(group, skip)
        if closed:
            return float("-inf")
        return self._full_at(batch) if batch.requests else None

    def take(self, batch: Batch) -> None:
        """Remove the requests of a batch that `peek` returned."""
        for request in batch.requests:
            self.remove(request.request_id)

    def _cut(self, group: Group, skip: int) -> tuple[Batch, bool]:
        """The forming batch, as its group would run it, and whether its tokens alone close it."""
        requests: list[Request] = []
        num_tokens = kv_tokens = 0
        for request in filter(None, map(group.seen, self._behind(skip))):
            num_tokens, kv_tokens = num_tokens + request.num_tokens, kv_tokens + group.kv_tokens(request)
            if requests and (self._prefill.is_solo(num_tokens) or kv_tokens > self._prefill.max_tokens):
                return Batch(tuple(requests)), True
            requests.append(request)
            if num_tokens >= self._prefill.inflection_tokens:
                return Batch(tuple(requests)), True
        return Batch(tuple(requests)), False

    def _behind(self, skip: int) -> Iterator[Request]:
        return (waiting.request for waiting in islice(self._waiting.values(), skip, None))

    def _full_at(self, batch: Batch) -> float:
        return self._waiting[batch.requests[0].request_id].full_at
