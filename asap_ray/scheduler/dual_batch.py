"""Dual-batch interleaving (3.3.2): which batch runs on which DP group, two at a time.

A pure policy: time is an argument, and nothing here waits. The caller runs what `assign` returns,
ends every assignment with `done` or `requeue`, and calls `assign` again then, after `submit` and
`cancel`, and at `wake_at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from asap_ray.batch import Batch, Request
from asap_ray.errors import ConfigError, Overloaded, RequestError
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.scheduler.admission import Admission, refill
from asap_ray.scheduler.drain_rate import DrainRate
from asap_ray.scheduler.forecast import Forecast
from asap_ray.scheduler.paper import Paper
from asap_ray.scheduler.policy import Group, Policy
from asap_ray.scheduler.prefixes import Backlog, Prefixes
from asap_ray.spec import PrefillSpec


@dataclass(frozen=True, slots=True)
class Assignment:
    """Run this batch on this DP group, now."""

    group: int
    batch: Batch


class DualBatchScheduler:
    """One bounded queue in front of all DP groups of an instance.

    A policy says what runs next and where; a group holds at most `NUM_SLOTS` batches, and by default has room again as
    soon as one is done.
    """

    def __init__(
        self,
        prefill: PrefillSpec,
        num_groups: int,
        max_queued_requests: int,
        max_queued_tokens: int,
        policy: Policy | None = None,
        admission: Admission = refill,
        slo_ttft_s: float | None = None,
    ) -> None:
        """`policy`, the paper's if None, is empty and made for this `prefill`; `admission` says when a group has room.

        With `slo_ttft_s` a prompt is refused whose first token is expected later than that (`Forecast`).

        Without `open_caches` no prompt is found in a cache, and none is longer than `prefill.max_tokens`.

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
        self._max_queued_requests = max_queued_requests
        self._max_queued_tokens = max_queued_tokens
        self._policy = policy or Paper(prefill)
        self._admission = admission
        self._groups = [Group(index) for index in range(num_groups)]
        self._prefill = prefill
        self._prefixes = Prefixes()
        self._forget: dict[int, tuple[str, ...]] = {}  # what a batch that found no room was to tell its group
        self._full: set[int] = set()  # groups whose next prompt finds no room, as `assign` left them
        self._now = 0.0
        self._drain_rate = DrainRate()
        self._busy_since_s = 0.0
        self._forecast = None if slo_ttft_s is None else Forecast(slo_ttft_s)

    def open_caches(self, prefixes: Prefixes) -> None:
        """Keep prompts in these caches, one a group; nothing was submitted yet."""
        self._prefixes = prefixes
        for group in self._groups:
            group.seen = partial(self._seen, group.index)
            group.has_blocks = True

    @property
    def num_queued(self) -> int:
        """Requests that wait for a group."""
        return self._policy.num_requests

    @property
    def num_queued_tokens(self) -> int:
        """Their prompt tokens."""
        return self._policy.num_tokens

    @property
    def drain_s(self) -> float:
        """How long they take at the rate of the last batches."""
        return self._drain_rate.seconds(self.num_queued_tokens)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that can run; a group that was replaced may have other room than before."""
        if not self.caches:
            return self._prefill.max_tokens
        return min(self._policy.longest_prompt, self._max_queued_tokens, self._prefixes.room)

    @property
    def caches(self) -> Sequence[PrefixCache]:
        """Of every group; none before `open_caches`."""
        return self._prefixes.caches

    def in_flight(self, group: int) -> tuple[Batch, ...]:
        """Batches assigned to a group and not ended yet."""
        return tuple(self._groups[group].in_flight)

    @property
    def held(self) -> tuple[tuple[Batch, ...], ...]:
        """The batches in flight of every group."""
        return tuple(tuple(group.in_flight) for group in self._groups)

    def check(self, request: Request) -> None:
        """Refuse what could never be queued, or not beside what is queued or runs.

        Raises:
            RequestError: too long for the policy, the queue or a cache; or the id is in use.
        """
        if not 1 <= request.num_tokens <= self.longest_prompt:
            raise RequestError(
                f"prompt has {request.num_tokens} tokens; this instance takes 1 to {self.longest_prompt}",
                param="prompt",
            )
        self._prefixes.check(request)
        running = (each.request_id for group in self._groups for batch in group.in_flight for each in batch.requests)
        if self._policy.has(request.request_id) or request.request_id in running:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")

    def submit(self, request: Request, now: float, keys: Sequence[bytes] = ()) -> None:
        """Queue a request; `keys` name the full blocks of its prompt (`kvcache.block_keys`).

        Raises:
            Overloaded: the queue is full, or the prompt would be late; says when to come back.
            RequestError: see `check`.
        """
        self.check(request)
        self._check_room(request)
        if self._forecast:
            backlog_s = self._backlog_s(request)
            if self.num_queued or any(group.in_flight for group in self._groups):
                self._forecast.check(request, backlog_s, now)
            if all(group.is_up for group in self._groups):  # else nobody knows when it is due
                self._forecast.admitted(request, backlog_s, now)
        self._prefixes.add(request, keys)
        self._policy.push(request, now)

    def _check_room(self, request: Request) -> None:
        if (
            self.num_queued >= self._max_queued_requests
            or self.num_queued_tokens + request.num_tokens > self._max_queued_tokens
        ):
            raise Overloaded(
                f"the queue holds {self.num_queued} of {self._max_queued_requests} requests and "
                f"{self.num_queued_tokens} of {self._max_queued_tokens} tokens; "
                f"there is no room for a prompt of {request.num_tokens}",
                retry_after_s=self.drain_s,
            )

    def _backlog_s(self, request: Request) -> float:
        """How long what runs, what would go before a prompt, and the prompt take at the rate of the last batches."""
        running = sum(batch.num_tokens for group in self._groups for batch in group.in_flight)
        return self._drain_rate.token_s * (running + self._policy.tokens_before(request) + request.num_tokens)

    def cancel(self, request_id: str) -> bool:
        """Drop what still waits of a request, pieces too; whether anything did. A running batch finishes.

        A group that was kept for it is free for what came later.
        """
        is_cancelled = self._policy.remove(request_id)
        if is_cancelled:
            self._prefixes.cancel(request_id)
            if self._forecast:
                self._forecast.forget(request_id)
        return is_cancelled

    def assign(self, now: float) -> list[Assignment]:
        """Every batch that can start now; they count as in flight from here on."""
        assignments = []
        self._full.clear()
        self._look(now)
        while taken := self._policy.take(now, self._groups):
            group, batch = taken
            batch = self._reserved(group, batch)
            if not batch.requests:
                continue
            if not any(each.in_flight for each in self._groups):
                self._busy_since_s = now
            if not group.in_flight:
                group.busy_since_s = now
            group.in_flight.append(batch)
            group.num_free -= 1
            assignments.append(Assignment(group.index, batch))
        return assignments

    def wake_at(self, now: float) -> float | None:
        """When `assign` has a batch if nothing else happens; None if only an event can bring one."""
        self._look(now)
        closes_at = self._policy.wake_at(now, self._groups)
        wake_at = min(self._prefixes.wake_at, float("inf") if closes_at is None else closes_at)
        return None if wake_at == float("inf") else max(now, wake_at)

    def computed(self, batch: Batch, now: float) -> None:
        """The first pass of a batch has ended well: its prompts can be found in the cache of its group."""
        self._prefixes.computed(batch)
        if self._forecast:
            for request in batch.requests:
                if not request.future_tokens:
                    self._forecast.answered(request, now)

    def lend(self, request_id: str) -> None:
        """The blocks of a prompt that runs outlive it: whoever asked for that releases them."""
        self._prefixes.lend(request_id)

    def done(self, group: int, batch: Batch, now: float) -> None:
        """A batch ended, well or not; its slot is free."""
        self._groups[group].in_flight.remove(batch)
        self._groups[group].busy_since_s = now
        self._policy.ended(batch)
        self._prefixes.ended(batch)
        self._drain_rate.add(batch.num_tokens, now - self._busy_since_s)
        self._busy_since_s = now

    def requeue(self, batch: Batch) -> None:
        """Take a batch from its group, which was lost, back to the head of the queue.

        All batches of the group are requeued before the next `assign`: a prompt in pieces starts over, once. The
        bound of the queue does not apply: these requests were admitted before.
        """
        group = next(group for group in self._groups if batch in group.in_flight)
        group.in_flight.remove(batch)
        self._policy.put_back([self._prefixes.whole(each) for each in batch.requests])
        self._prefixes.put_back(batch)
        if self._forecast:  # what a loss costs says nothing of the next prompt
            for request in batch.requests:
                self._forecast.forget(request.request_id)

    def mark_down(self, group: int) -> None:
        """Assign nothing more to a group; what it runs still ends with `done` or `requeue`.

        A prompt of which it had pieces to come starts over, unless one is in flight: that one's end decides.
        """
        self._groups[group].is_up = False
        self._forget.pop(group, None)
        self._policy.abandon(group)
        self._prefixes.lose(group)
        if self._forecast and not any(each.is_up for each in self._groups):
            self._forecast.forget_all()

    def mark_up(self, group: int) -> None:
        """The group takes batches again, and has nothing cached."""
        self._groups[group].is_up = True
        self._prefixes.restore(group)

    def _look(self, now: float) -> None:
        """Say what the policy may see of the groups at this moment."""
        self._now = now
        self._prefixes.look()
        for group in self._groups:
            group.num_free = 0 if group.index in self._full else self._admission(len(group.in_flight))

    def _reserved(self, group: Group, batch: Batch) -> Batch:
        """What of a batch has room in its group's cache; the rest is put back, and a group without any is full."""
        forget = self._forget.pop(group.index, ())
        batch, waiting = self._prefixes.reserve(group.index, replace(batch, forget=(*forget, *batch.forget)))
        if waiting:
            self._policy.put_back(waiting)
        if not batch.requests:
            self._full.add(group.index)
            self._forget[group.index] = batch.forget
            group.num_free = 0
        return batch

    def _seen(self, group: int, request: Request) -> Request | None:
        """See `Group`."""
        return self._prefixes.seen(group, request, self._now, self._backlog())

    def _backlog(self) -> Backlog:
        """A group has to do what is in flight there, less what it may have done of it since its last batch ended."""
        up = [group for group in self._groups if group.is_up]
        token_s = self._drain_rate.token_s * len(up)
        queue_s = {
            group.index: max(
                0.0, token_s * sum(batch.num_tokens for batch in group.in_flight) - (self._now - group.busy_since_s)
            )
            for group in up
        }
        return Backlog(queue_s, token_s)
