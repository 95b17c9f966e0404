"""Prompts in, tokens out: the scheduler and the DP groups behind one asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from asap_ray.actors.limits import Limits
from asap_ray.actors.tokenizer import Tokenizer
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError, PeerTimeout, RequestError, Unavailable
from asap_ray.scheduler.dual_batch import Assignment, DualBatchScheduler
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.shares import tokens

_DEADLINES: Final = 20
"""No client waits longer than so many `deadline_s` for its next token: 10 minutes by default, as in OpenAI's client."""

_log = logging.getLogger(__name__)


class Groups(Protocol):
    """The engine's door: D attention groups behind Ray actors, or their double in a test."""

    @property
    def num_groups(self) -> int:
        """D."""

    def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """Run a batch: one element a pass, the first tokens first, until every request has a finish_reason."""

    def missing(self) -> tuple[str, ...]:
        """Devices that are not serving; empty when ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What clients may know of the model, and ask of it."""

    name: str
    vocab_size: int
    max_model_len: int  # positions: prompt and generated tokens together
    end_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None  # None: token-id prompts only, and no text in answers


@dataclass(frozen=True, slots=True)
class Ttft:
    """The parts of one time to first token, in seconds (5.3).

    The rest of the total is the way to the group and back, the wait at its door, and the other slot's turns.
    """

    queue_s: float  # from arrival until the batch, or that of a long prompt's last piece, is handed to a DP group
    attention_s: float
    dispatch_s: float
    combine_s: float
    total_s: float  # from arrival to the token


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one request; `ttft` comes with its first."""

    token: Token
    ttft: Ttft | None = None


@dataclass(frozen=True, slots=True)
class _Waiter:
    request: Request
    events: asyncio.Queue[TokenEvent | AsapError]


class PrefillService:
    """One per instance. All methods belong to one asyncio loop."""

    def __init__(self, config: ServeConfig, model: ServedModel, groups: Groups) -> None:
        self.config = config
        self.model = model
        self.limits = Limits(
            vocab_size=model.vocab_size,
            max_prompt_tokens=min(config.prefill.max_tokens, model.max_model_len),
            max_answer_tokens=config.max_answer_tokens,
            max_model_len=model.max_model_len,
        )
        self._groups = groups
        self._scheduler = DualBatchScheduler(
            config.prefill,
            groups.num_groups,
            config.max_queued_requests,
            config.max_queued_tokens,
            policy_of(config.policy, config.prefill, tokens),
        )
        self._deadline_s = _DEADLINES * config.prefill.deadline_s
        self._waiting: dict[str, _Waiter] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._lost: dict[int, str] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._stopping = False

    def missing(self) -> tuple[str, ...]:
        """Why the instance is not ready; empty when it is."""
        if self._stopping:
            return ("the instance is stopping",)
        return (*self._groups.missing(), *self.lost)

    @property
    def lost(self) -> tuple[str, ...]:
        """Groups that failed a batch, and why; none of them is used again by this service."""
        return tuple(f"group {group} ({reason})" for group, reason in self._lost.items())

    def check_ready(self) -> None:
        """Raise Unavailable, naming who is missing, unless every device serves."""
        if missing := self.missing():
            raise Unavailable(f"not ready: {', '.join(missing)}")

    def check(self, request: Request) -> None:
        """Refuse what no group could run; `generate` does so before it queues.

        Raises:
            RequestError: names the field, its value and the limit; or the id is in use.
        """
        self.limits.check(request)
        self._scheduler.check(request)

    def check_count(self, num_prompts: int) -> None:
        """Refuse more prompts in one request than could ever be queued; a retry would not help.

        Raises:
            RequestError: names the number and the limit.
        """
        if num_prompts > self.config.max_queued_requests:
            raise RequestError(
                f"{num_prompts} prompts in one request; the queue holds {self.config.max_queued_requests}", "prompt"
            )

    async def generate(self, requests: Sequence[Request]) -> AsyncGenerator[TokenEvent, None]:
        """Queue the prompts of one client, all or none, and yield their tokens as they come.

        Closing the generator drops what is still queued; what runs finishes unheard.

        Raises:
            Unavailable: the instance is not ready, or lost a device on the way; nothing hangs.
            Overloaded: the queue is full.
            RequestError: see `check`; or more prompts than the queue could ever hold.
        """
        self.check_count(len(requests))
        for request in requests:  # before anything is undone below: a refused id may be another client's
            self.check(request)
        events: asyncio.Queue[TokenEvent | AsapError] = asyncio.Queue()  # bounded by max_tokens of the requests
        try:
            self._submit(requests, events)
            unfinished = len(requests)
            while unfinished:
                event = await self._next(events)
                unfinished -= event.token.finish_reason is not None
                yield event
        finally:
            for request in requests:
                self._waiting.pop(request.request_id, None)
            cancelled = [self._scheduler.cancel(request.request_id) for request in requests]
            if any(cancelled):
                self._dispatch()  # what waited behind a solo may start now

    async def close(self) -> None:
        """Refuse what is new, fail what is queued, let what runs finish for one deadline."""
        self._stopping = True
        stopping = Unavailable("the instance is stopping")
        self._fail(
            [w.request for w in self._waiting.values() if self._scheduler.cancel(w.request.request_id)], stopping
        )
        if running := list(self._running):
            await asyncio.wait(running, timeout=self.config.prefill.deadline_s)
        self._fail([waiter.request for waiter in self._waiting.values()], stopping)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _submit(self, requests: Sequence[Request], events: asyncio.Queue[TokenEvent | AsapError]) -> None:
        self.check_ready()
        num_tokens, most_tokens = sum(request.num_tokens for request in requests), self.config.max_queued_tokens
        if len(requests) > 1 and num_tokens > most_tokens:
            raise RequestError(
                f"{len(requests)} prompts of {num_tokens} tokens in one request; the queue holds {most_tokens}",
                "prompt",
            )
        for request in requests:
            self._scheduler.submit(request, time.monotonic())
            self._waiting[request.request_id] = _Waiter(request, events)
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
        for assignment in self._scheduler.assign(time.monotonic()):
            task = asyncio.create_task(self._run(assignment))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        now = time.monotonic()
        wake_at = self._scheduler.wake_at(now)
        if wake_at is not None:
            self._wake = asyncio.get_running_loop().call_later(wake_at - now, self._dispatch)

    async def _run(self, assignment: Assignment) -> None:
        group, batch = assignment.group, assignment.batch
        try:
            await self._stream(group, batch)
            due = [request for request in batch.requests if not request.future_tokens]
            self._fail(due, Unavailable(f"group {group} ended a batch before its last token"))
        except Exception as error:  # whatever it is, it must not leave a client waiting
            self._lose(group, batch, error)
        finally:
            self._scheduler.done(group, batch, time.monotonic())
            self._dispatch()

    async def _stream(self, group: int, batch: Batch) -> None:
        """Hand a group's tokens to whoever waits for them."""
        started_s = time.monotonic()
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
            for token in tokens:
                if waiter := self._waiting.get(token.request_id):
                    ttft = _ttft(waiter.request, started_s, stamps) if is_first else None
                    waiter.events.put_nowait(TokenEvent(token, ttft))
                    if token.finish_reason:
                        del self._waiting[token.request_id]
            is_first = False

    def _lose(self, group: int, batch: Batch, error: Exception) -> None:
        """A group that failed once is not trusted again; nobody waits for it."""
        _log.error("group %d failed", group, exc_info=error)
        reason = str(error) if isinstance(error, AsapError) else type(error).__name__  # others may tell too much
        self._lost[group] = reason
        self._scheduler.mark_down(group)
        lost = Unavailable(f"group {group} failed: {reason}")
        self._fail(batch.requests, lost)
        if len(self._lost) == self._groups.num_groups:
            self._fail([waiter.request for waiter in self._waiting.values()], lost)

    def _fail(self, requests: Iterable[Request], error: AsapError) -> None:
        for request in list(requests):
            if waiter := self._waiting.pop(request.request_id, None):
                waiter.events.put_nowait(error)


def _ttft(request: Request, started_s: float, stamps: Stamps) -> Ttft:
    return Ttft(
        queue_s=started_s - request.arrival_s,
        attention_s=stamps.attention_s,
        dispatch_s=stamps.dispatch_s,
        combine_s=stamps.combine_s,
        total_s=time.monotonic() - request.arrival_s,
    )
