"""Prompts in, tokens out: the scheduler and the DP groups behind one asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.handoff import HandOff
from asap_ray.actors.limits import Limits, check_count
from asap_ray.actors.tokenizer import Tokenizer
from asap_ray.actors.waiter import TokenEvent, Waiter
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError, PeerTimeout, RequestError, Unavailable
from asap_ray.kvcache.block_keys import block_keys, root_key
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.transfer_params import Transfer
from asap_ray.messages import Pages
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.prefixes import Prefixes
from asap_ray.scheduler.shares import tokens

DEADLINES: Final = 20
"""No client waits longer than so many `deadline_s` for its next token: 10 minutes by default, as in OpenAI's client."""

_log = logging.getLogger(__name__)


class Groups(Protocol):
    """The engine's door: D attention groups behind Ray actors, or their double in a test."""

    @property
    def num_groups(self) -> int:
        """D."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache of each group, once they serve; 0: there is none."""

    def shared_pages(self, group: int) -> tuple[Pages, ...]:
        """Where the KV cache of a group's ranks lies, once they serve."""

    def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """Run a batch: one element a pass, the first tokens first, until every request has a finish_reason."""

    def missing(self) -> tuple[str, ...]:
        """Devices that are not serving; empty when ready."""

    @property
    def is_recovering(self) -> bool:
        """Whether what is missing is being brought back, so that prompts may wait for it."""

    async def serves(self, group: int) -> bool:
        """Whether a group that failed a batch serves all the same; if not, its owner brings it back."""

    def report(self, group: int, reason: str) -> None:
        """A group does not get on, whatever it says of itself: replace it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What clients may know of the model, and ask of it."""

    name: str
    vocab_size: int
    max_model_len: int  # positions: prompt and generated tokens together
    fingerprint: str  # of its configuration and weights
    end_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None  # None: token-id prompts only, and no text in answers


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
        self._deadline_s = DEADLINES * config.prefill.deadline_s
        self.hand_off = HandOff(config, model.fingerprint, on_free=self._dispatch)
        self._waiting: dict[str, Waiter] = {}
        self._running: dict[asyncio.Task[None], int] = {}  # and the group of each
        self._lost: dict[int, str] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def limits(self) -> Limits:
        """What one prompt may ask; the longest grows once the groups have said what their caches hold."""
        return Limits(
            vocab_size=self.model.vocab_size,
            max_prompt_tokens=min(self._scheduler.longest_prompt, self.model.max_model_len),
            max_answer_tokens=self.config.max_answer_tokens,
            max_model_len=self.model.max_model_len,
        )

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
        for task, its_group in list(self._running.items()):
            if its_group == group and task is not asyncio.current_task():
                task.cancel()
        batches = self._scheduler.in_flight(group)
        for batch in reversed(batches):  # each goes to the head of the queue
            self._scheduler.requeue(batch)
        for request in {each.request_id: each for batch in batches for each in batch.requests}.values():
            waiter = self._waiting.get(request.request_id)
            if waiter is None or not waiter.start_over():
                self._scheduler.cancel(request.request_id)
                self._fail([request], Unavailable(f"group {group} failed: {reason}"))
        self._dispatch()

    def restore(self, group: int) -> None:
        """A group is back and takes batches again."""
        if self._lost.pop(group, None) is not None:
            self._scheduler.mark_up(group)
            self._join_hand_off(group)
            self._dispatch()

    def give_up(self, reason: str) -> None:
        """Devices are lost for good: nobody waits for them."""
        self._drop(list(self._waiting.values()), Unavailable(f"not ready: {reason}"))

    def check(self, request: Request) -> None:
        """Refuse what no group could run; `generate` does so before it queues.

        Raises:
            RequestError: names the field, its value and the limit; or the id is in use.
        """
        self.limits.check(request)
        self._scheduler.check(request)

    def check_count(self, num_prompts: int) -> None:
        """See `limits.check_count`."""
        check_count(num_prompts, self.config.max_queued_requests)

    async def generate(
        self, requests: Sequence[Request], cache_salt: str = "", transfer: Transfer | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Queue the prompts of one client, all or none, and yield their tokens as they come.

        Cached prefixes are shared with prompts of the same `cache_salt` only. With `transfer` a decode
        instance goes on.

        Closing the generator drops what no group has yet, pieces too; what runs finishes unheard.

        Raises:
            Unavailable: the instance is not ready, or lost a device on the way; nothing hangs.
            Overloaded: the queue is full, or the first token would be late.
            RequestError: see `check`; or more prompts than the queue could ever hold.
        """
        self.check_count(len(requests))
        hands_off = bool(transfer and self.hand_off.check(requests, transfer))
        for request in requests:  # before anything is undone below: a refused id may be another client's
            self.check(request)
        events: asyncio.Queue[TokenEvent | AsapError] = asyncio.Queue()  # bounded by max_tokens of the requests
        try:
            self._submit([Waiter(request, events, hands_off) for request in requests], cache_salt)
            unfinished = len(requests)
            while unfinished:
                event = await self._next(events)
                unfinished -= event.token.finish_reason is not None
                yield event
        except (GeneratorExit, asyncio.CancelledError) as leaving:  # closed after a stop string; or the client is gone
            for waiter in self._waiters(requests):
                self.metrics.ended(waiter, "stop" if isinstance(leaving, GeneratorExit) else "abort")
            raise
        finally:
            for request in requests:
                self._waiting.pop(request.request_id, None)
            cancelled = [self._scheduler.cancel(request.request_id) for request in requests]
            if any(cancelled):
                self._dispatch()  # what waited behind a solo may start now

    async def close(self) -> None:
        """Refuse what is new, fail what has not begun, let what has finish for one deadline, piece by piece."""
        self._stopping = True
        for group in range(self._groups.num_groups):  # a successor may hand out their blocks from now on
            self.hand_off.lose(group)
        stopping = Unavailable("the instance is stopping")
        self._drop([waiter for waiter in self._waiting.values() if waiter.handed_s is None], stopping)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.prefill.deadline_s):
                while self._running:  # a batch that ends hands over the next piece before it leaves
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._drop(list(self._waiting.values()), stopping)
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _drop(self, waiters: Sequence[Waiter], error: AsapError) -> None:
        """Fail prompts of an instance that ends; what no group has of them never runs."""
        requests = [waiter.request for waiter in waiters]
        for request in requests:
            self._scheduler.cancel(request.request_id)
        self._fail(requests, error)

    def _submit(self, waiters: Sequence[Waiter], cache_salt: str) -> None:
        if self._stopping or (self._groups.missing() and not self._groups.is_recovering):
            self.check_ready()  # else they wait for who is missing
        requests = [waiter.request for waiter in waiters]
        num_tokens, most_tokens = sum(request.num_tokens for request in requests), self.config.max_queued_tokens
        if len(requests) > 1 and num_tokens > most_tokens:
            raise RequestError(
                f"{len(requests)} prompts of {num_tokens} tokens in one request; the queue holds {most_tokens}",
                "prompt",
            )
        root = root_key(self.model.fingerprint, cache_salt)
        for request, waiter in zip(requests, waiters, strict=True):
            keys = block_keys(request.token_ids, self.config.kv_cache.block_size, root)
            self._scheduler.submit(request, time.monotonic(), keys)
            self._waiting[request.request_id] = waiter
            self.metrics.accepted(request)
        self._dispatch()

    async def _next(self, events: asyncio.Queue[TokenEvent | AsapError]) -> TokenEvent:
        try:
            async with asyncio.timeout(self._deadline_s):
                event = await events.get()
        except TimeoutError:
            raise Unavailable(f"no token within {self._deadline_s:g} s") from None
        if isinstance(event, AsapError):
            raise event
        return event

    def _dispatch(self) -> None:
        """Start every batch that can start now, and look again when the oldest has waited enough."""
        if self._wake:
            self._wake.cancel()
            self._wake = None
        self.hand_off.expire(time.monotonic())
        for assignment in self._scheduler.assign(time.monotonic()):
            self.metrics.dispatched(assignment.batch)
            for piece in assignment.batch.requests:
                if waiter := self._waiting.get(piece.request_id):
                    waiter.hand_over(piece)
            task = asyncio.create_task(self._run(assignment))
            self._running[task] = assignment.group
            task.add_done_callback(self._running.pop)
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
            self._fail(due, Unavailable(f"group {group} ended a batch before its last token"))
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
        passes = aiter(self._groups.run(group, batch))
        is_first = True
        while True:
            try:
                async with asyncio.timeout(self._deadline_s):
                    tokens, stamps = await anext(passes)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise PeerTimeout(f"group {group} produced nothing within {self._deadline_s:g} s") from None
            self.metrics.passed(batch, tokens, is_first)
            if is_first:
                self._scheduler.computed(batch, time.monotonic())
                for waiter in self._waiters(batch.requests):
                    waiter.add(stamps)
            for token in tokens:
                if client := self._waiting.get(token.request_id):
                    event = client.event(token, is_first=is_first)
                    client.events.put_nowait(self._handed_off(group, client, event) if client.hands_off else event)
                    self.metrics.answered(client, event)
                    if token.finish_reason:
                        del self._waiting[token.request_id]
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

    def _waiters(self, requests: Iterable[Request]) -> list[Waiter]:
        """Those whose clients are still here."""
        return [waiter for each in requests if (waiter := self._waiting.get(each.request_id))]

    def _fail(self, requests: Iterable[Request], error: AsapError) -> None:
        for request in list(requests):
            if waiter := self._waiting.pop(request.request_id, None):
                waiter.events.put_nowait(error)
