"""Prompts in, tokens out: the scheduler and the DP groups behind one asyncio loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial
from typing import Final

from asap_ray.actors.admission import Admission
from asap_ray.actors.answers import Answers, Events
from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.groups import Groups
from asap_ray.actors.handoff import HandOff
from asap_ray.actors.limits import Limits, check_count
from asap_ray.actors.runs import Runs
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.waiter import TokenEvent, Waiter
from asap_ray.batch import Batch, Request
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError, PeerTimeout, Unavailable
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.transfer_params import Transfer
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.prefixes import Prefixes
from asap_ray.scheduler.shares import tokens

DEADLINES: Final = 20
"""No client waits longer than so many `deadline_s` for its next token: 10 minutes by default, as in OpenAI's client."""

_log = logging.getLogger(__name__)


class PrefillService:
    """One per instance. All methods belong to one asyncio loop."""

    def __init__(
        self, config: ServeConfig, model: ServedModel, groups: Groups, metrics: FrontendMetrics | None = None
    ) -> None:
        self.config = config
        self.model = model
        self.metrics = metrics or FrontendMetrics(config, model.name)
        self._groups = groups
        self._scheduler = DualBatchScheduler(
            config.prefill,
            groups.num_groups,
            config.max_queued_requests,
            config.max_queued_tokens,
            policy_of(config.policy, config.prefill, tokens),
            slo_ttft_s=config.slo_ttft_s,
        )
        self.admission = Admission(config, model, self._scheduler)
        self._answers = Answers(self.metrics, DEADLINES * config.prefill.deadline_s)
        self.hand_off = HandOff(config, model.fingerprint, on_free=self._dispatch)
        self._runs = Runs()
        self._lost: dict[int, str] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def limits(self) -> Limits:
        """What one prompt may ask; the longest grows once the groups have said what their caches hold."""
        return self.admission.limits

    def open_caches(self) -> None:
        """The groups serve, and say how many blocks they have: from now on prompts are found in their caches."""

        def make_cache() -> PrefixCache:  # a group that was replaced may have other room than before
            return PrefixCache(BlockPool(self._groups.num_blocks, self.config.kv_cache.block_size))

        self._scheduler.open_caches(Prefixes(make_cache, self._groups.num_groups))
        for group in range(self._groups.num_groups):
            self._join_hand_off(group)

    def missing(self) -> tuple[str, ...]:
        """Why the instance is not ready; empty when it is."""
        if self._stopping:
            return ("the instance is stopping",)
        return (*self._groups.missing(), *(f"group {group} ({reason})" for group, reason in self._lost.items()))

    def report(self) -> None:
        """Once a second, and before a scrape: metrics that are read, not counted."""
        self.metrics.report(self._scheduler, is_ready=not self.missing(), now=time.monotonic())

    def check_ready(self) -> None:
        """Raise Unavailable, naming who is missing, unless every device serves."""
        if missing := self.missing():
            raise Unavailable(f"not ready: {', '.join(missing)}")

    def lose(self, group: int, reason: str) -> None:
        """A group is gone: what it ran runs elsewhere, or here again when it is back; nobody is answered twice.

        A request is run again once, and only before its first token; otherwise it fails and says why.
        """
        if group in self._lost:
            return
        self._lost[group] = reason
        self._scheduler.mark_down(group)
        self.hand_off.lose(group)
        self._runs.cancel(group)
        batches = self._scheduler.in_flight(group)
        for batch in reversed(batches):  # each goes to the head of the queue
            self._scheduler.requeue(batch)
        for request in {each.request_id: each for batch in batches for each in batch.requests}.values():
            waiter = self._answers.get(request.request_id)
            if waiter is None or not waiter.start_over():
                self._scheduler.cancel(request.request_id)
                self._answers.fail([request], Unavailable(f"group {group} failed: {reason}"))
        self._dispatch()

    def restore(self, group: int) -> None:
        """A group is back and takes batches again."""
        if self._lost.pop(group, None) is not None:
            self._scheduler.mark_up(group)
            self._join_hand_off(group)
            self._dispatch()

    def give_up(self, reason: str) -> None:
        """Devices are lost for good: nobody waits for them."""
        self._drop(self._answers.all(), Unavailable(f"not ready: {reason}"))

    def check_count(self, num_prompts: int) -> None:
        """See `limits.check_count`."""
        check_count(num_prompts, self.config.max_queued_requests)

    async def generate(
        self, requests: Sequence[Request], cache_salt: str = "", transfer: Transfer | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Queue the prompts of one client, all or none, and yield their tokens as they come.

        Cached prefixes are shared with prompts of the same `cache_salt` only. With `transfer` a decode
        instance goes on.

        Closing the generator drops what no group has yet, pieces too; what runs ends with its next token, unheard.

        Raises:
            Unavailable: the instance is not ready, or lost a device on the way; nothing hangs.
            Overloaded: the queue is full, or the first token would be late.
            RequestError: see `Admission`.
        """
        hands_off = bool(transfer and self.hand_off.check(requests, transfer))
        self.admission.check(requests)  # before anything is undone below: a refused id may be another client's
        events: Events = asyncio.Queue()  # bounded by max_tokens of the requests
        try:
            self._submit([Waiter(request, events, hands_off) for request in requests], cache_salt)
            unfinished = len(requests)
            while unfinished:
                event = await self._answers.next(events)
                unfinished -= event.token.finish_reason is not None
                yield event
        except (GeneratorExit, asyncio.CancelledError) as leaving:  # closed after a stop string; or the client is gone
            for waiter in self._answers.of(requests):
                self.metrics.ended(waiter, "stop" if isinstance(leaving, GeneratorExit) else "abort")
            raise
        finally:
            unwanted = {waiter.request.request_id for waiter in self._answers.of(requests)}
            self._answers.leave(requests)
            self.stop(unwanted)
            cancelled = [self._scheduler.cancel(request.request_id) for request in requests]
            if any(cancelled):
                self._dispatch()  # what waited behind a solo may start now

    def stop(self, request_ids: Collection[str]) -> None:
        """Groups that decode these need not go on: a client has left, or has all it wants (a stop string)."""
        for group, batches in enumerate(self._scheduler.held):
            requests = {request.request_id for batch in batches for request in batch.requests}
            if running := sorted(requests.intersection(request_ids)):
                self._groups.abort(group, running)

    async def close(self) -> None:
        """Refuse what is new, fail what has not begun, let what has finish for one deadline, piece by piece."""
        self._stopping = True
        for group in range(self._groups.num_groups):  # a successor may hand out their blocks from now on
            self.hand_off.lose(group)
        stopping = Unavailable("the instance is stopping")
        self._drop([waiter for waiter in self._answers.all() if waiter.handed_s is None], stopping)
        await self._runs.wait(self.config.prefill.deadline_s)
        self._drop(self._answers.all(), stopping)
        await self._runs.end()

    def _drop(self, waiters: Sequence[Waiter], error: AsapError) -> None:
        """Fail prompts of an instance that ends; what no group has of them never runs."""
        requests = [waiter.request for waiter in waiters]
        for request in requests:
            self._scheduler.cancel(request.request_id)
        self._answers.fail(requests, error)

    def _submit(self, waiters: Sequence[Waiter], cache_salt: str) -> None:
        if self._stopping or (self._groups.missing() and not self._groups.is_recovering):
            self.check_ready()  # else they wait for who is missing
        self.admission.check_total([waiter.request for waiter in waiters])
        for waiter in waiters:
            self.admission.queue(waiter.request, cache_salt)
            self._answers.add(waiter)
            self.metrics.accepted(waiter.request)
        self._dispatch()

    def _dispatch(self) -> None:
        """Start every batch that can start now, and look again when the oldest has waited enough."""
        if self._wake:
            self._wake.cancel()
            self._wake = None
        self.hand_off.expire(time.monotonic())
        for assignment in self._scheduler.assign(time.monotonic()):
            self.metrics.dispatched(assignment.batch)
            for piece in assignment.batch.requests:
                if waiter := self._answers.get(piece.request_id):
                    waiter.hand_over(piece)
            self._runs.start(assignment.group, self._run(assignment))
        now = time.monotonic()
        self.metrics.slots_changed(self._scheduler, now)
        wake_at = min(
            (at for at in (self._scheduler.wake_at(now), self.hand_off.wake_at()) if at is not None), default=None
        )
        if wake_at is not None:
            self._wake = asyncio.get_running_loop().call_later(wake_at - now, self._dispatch)

    async def _run(self, assignment: Assignment) -> None:
        group, batch = assignment.group, assignment.batch
        try:
            await self._stream(group, batch)
            due = [request for request in batch.requests if not request.future_tokens]
            self._answers.fail(due, Unavailable(f"group {group} ended a batch before its last token"))
        except Exception as error:  # whatever it is, it must not leave a client waiting
            _log.error("group %d failed", group, exc_info=error)
            self.metrics.group_failed(group)
            reason = str(error) if isinstance(error, AsapError) else type(error).__name__  # others may tell too much
            self.lose(group, reason)
            if isinstance(error, PeerTimeout):
                self._groups.report(group, reason)
            elif await self._groups.serves(group):  # the batch failed, or another frontend has taken over
                self.restore(group)
            elif group in self._lost:  # it does not say so, and nobody else may have noticed
                self._groups.report(group, reason)
        else:
            self._scheduler.done(group, batch, time.monotonic())
            self._dispatch()

    async def _stream(self, group: int, batch: Batch) -> None:
        """Hand a group's tokens to whoever waits for them."""
        is_first = True
        async for made, stamps in self._answers.passes(group, self._groups.run(group, batch)):
            self.metrics.passed(batch, made, is_first)
            if is_first:
                self._scheduler.computed(batch, time.monotonic())
                for waiter in self._answers.of(batch.requests):
                    waiter.add(stamps)
            unheard = self._answers.give(made, is_first=is_first, hand_off=partial(self._handed_off, group))
            if unheard:  # its client left before the group had the batch
                self._groups.abort(group, unheard)
            is_first = False

    def _join_hand_off(self, group: int) -> None:
        """Decode instances may pull from the cache of a group that starts, or is back."""
        if self._scheduler.caches:
            self.hand_off.join(group, self._scheduler.caches[group], self._groups.shared_pages(group))

    def _handed_off(self, group: int, client: Waiter, event: TokenEvent) -> TokenEvent:
        """The blocks of a prompt that has its token stay, unless that ends the answer, as in vLLM."""
        if event.token.finish_reason != "length" or self._stopping:
            return event
        self._scheduler.lend(client.request.request_id)
        kept = self.hand_off.grant(group, client.request.request_id, client.request.num_tokens, client.cached_tokens)
        return dataclasses.replace(event, handed_off=kept)
