"""Prompts in, tokens out, on one undivided model: keys and values are pulled from where the prompt was computed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from asap_ray.actors.answers import next_token
from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.limits import Limits, check_count
from asap_ray.actors.remote_lease import RemoteLease
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import DEADLINES
from asap_ray.actors.waiter import TokenEvent, Waiter
from asap_ray.backends.undivided import UndividedHost
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError, Overloaded, RequestError, Unavailable
from asap_ray.kvcache.transfer_params import PARAM, RemoteDecode, RemotePrefill, Transfer

_RETRY_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PullCounts:
    """Requests since the start, by where the keys and values of their prompts came from."""

    pulled: int = 0
    failed: int = 0  # to be pulled, but computed here
    computed: int = 0  # without parameters


class DecodeService:
    """Requests take turns, a pass each: correct, not fast. All methods belong to one asyncio loop."""

    def __init__(self, config: ServeConfig, model: ServedModel, host: UndividedHost) -> None:
        self.config = config
        self.model = model
        self._limits = Limits(
            vocab_size=model.vocab_size,
            max_prompt_tokens=min(config.prefill.max_tokens, model.max_model_len),
            max_answer_tokens=config.max_answer_tokens,
            max_model_len=model.max_model_len,
        )
        self.metrics = FrontendMetrics(config, model.name)
        self.counts = PullCounts()
        self._deadline_s = DEADLINES * config.prefill.deadline_s
        self._host = host
        self._answers: dict[asyncio.Task[None], Waiter] = {}
        self._unfinished: set[str] = set()  # requests whose last token is yet to come
        self._turn = asyncio.Lock()  # who waits for blocks first gets them first
        self._freed = asyncio.Event()
        self._stopping = False

    @property
    def limits(self) -> Limits:
        """What one prompt may ask."""
        return self._limits

    def report(self) -> None:
        """Before a scrape: requests that are here, and the blocks they hold."""
        num_waiting = sum(waiter.handed_s is None for waiter in self._answers.values())
        self.metrics.load(len(self._answers) - num_waiting, num_waiting)
        pool = self._host.pool
        self.metrics.held(pool.num_blocks - pool.num_free, pool.num_blocks)

    def check_ready(self) -> None:
        """Raise Unavailable when the instance is stopping."""
        if self._stopping:
            raise Unavailable("not ready: the instance is stopping")

    def check_count(self, num_prompts: int) -> None:
        """See `limits.check_count`."""
        check_count(num_prompts, self.config.max_queued_requests)

    async def generate(
        self,
        requests: Sequence[Request],
        cache_salt: str = "",  # noqa: ARG002 - nothing is shared here
        transfer: Transfer | None = None,
    ) -> AsyncGenerator[TokenEvent, None]:
        """See `Service`. Closing the generator stops its requests after the pass under way.

        Raises:
            Unavailable: the instance is stopping, or failed with this request.
            Overloaded: as many requests as the queue holds are here.
            RequestError: what no decode could run, or it is for a prefill instance.
        """
        self.check_count(len(requests))
        for request in requests:
            self._check(request, transfer)
        self.check_ready()
        if len(self._answers) + len(requests) > self.config.max_queued_requests:
            raise Overloaded(f"{len(self._answers)} requests are here; no more are taken", _RETRY_S)
        remote = transfer if isinstance(transfer, RemotePrefill) else None
        events: asyncio.Queue[TokenEvent | AsapError] = asyncio.Queue()
        waiters = [Waiter(request, events) for request in requests]
        answers = {asyncio.create_task(self._answer(waiter, remote)): waiter for waiter in waiters}
        self._answers |= answers
        self._unfinished |= {request.request_id for request in requests}
        for request in requests:
            self.metrics.accepted(request)
        try:
            unfinished = len(requests)
            while unfinished:
                event = await next_token(events, self._deadline_s)
                unfinished -= event.token.finish_reason is not None
                yield event
        except (GeneratorExit, asyncio.CancelledError) as leaving:  # closed after a stop string; or the client is gone
            for waiter in waiters:
                if waiter.request.request_id in self._unfinished:
                    self.metrics.ended(waiter, "stop" if isinstance(leaving, GeneratorExit) else "abort")
            raise
        finally:
            self._unfinished -= {request.request_id for request in requests}
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    def stop(self, request_ids: Collection[str]) -> None:
        """See `Service`."""
        for answer, waiter in self._answers.items():
            name = waiter.request.request_id
            if name in self._unfinished.intersection(request_ids):
                self._unfinished.remove(name)
                answer.cancel()
                self.metrics.ended(waiter, "stop")
                waiter.events.put_nowait(TokenEvent(Token(request_id=name, token_id=0, finish_reason="abort")))

    async def close(self) -> None:
        """Refuse what is new; let what is here finish for one deadline."""
        self._stopping = True
        if self._answers:
            _, running = await asyncio.wait([*self._answers], timeout=self.config.prefill.deadline_s)
            for answer in running:
                answer.cancel()
        await asyncio.to_thread(self._host.close)

    def _check(self, request: Request, transfer: Transfer | None) -> None:
        self.limits.check(request)
        self._host.pool.check(request.total_tokens)
        if isinstance(transfer, RemoteDecode):
            raise RequestError("do_remote_decode=true: this instance decodes; it hands nothing on", PARAM)
        if transfer and transfer.remote_num_tokens not in (None, request.num_tokens):
            raise RequestError(
                f"remote_num_tokens={transfer.remote_num_tokens}; the prompt has {request.num_tokens} tokens", PARAM
            )

    async def _answer(self, waiter: Waiter, remote: RemotePrefill | None) -> None:
        """One request, from its blocks to its last token; what goes wrong is an event too."""
        request, events = waiter.request, waiter.events
        try:
            async with contextlib.AsyncExitStack() as stack:
                lease = await stack.enter_async_context(RemoteLease(remote)) if remote else None
                table = await stack.enter_async_context(self._blocks(request))
                waiter.handed_s = time.monotonic()
                num_pulled = await self._pull(request, lease, table) if lease else 0
                self.counts.computed += lease is None
                await self._decode(waiter, replace(request.behind(num_pulled), table=table))
        except AsapError as error:
            events.put_nowait(error)
        except Exception as error:  # whatever it is, it must not leave a client waiting
            _log.exception("a request failed")
            events.put_nowait(Unavailable(f"decode failed: {type(error).__name__}"))
        finally:
            del self._answers[cast("asyncio.Task[None]", asyncio.current_task())]

    @contextlib.asynccontextmanager
    async def _blocks(self, request: Request) -> AsyncIterator[tuple[int, ...]]:
        """Blocks for a prompt and its answer, once there are enough; no later request passes one that waits."""
        async with self._turn:
            while (table := self._host.pool.reserve(request.request_id, request.total_tokens)) is None:
                self._freed.clear()
                await self._freed.wait()
        try:
            yield table
        finally:
            self._host.pool.release(request.request_id)
            self._freed.set()

    async def _pull(self, request: Request, lease: RemoteLease, table: tuple[int, ...]) -> int:
        """Take over what was computed elsewhere; how many tokens of the prompt, 0 if it has to be computed here.

        All but the last, whose logits are the first token.
        """
        num_tokens = request.num_tokens - 1
        try:
            found = await lease.read()
            if found.model != self._host.fingerprint:
                raise Unavailable("the prefill instance serves another checkpoint")
            await self._host.pull(found.ranks, found.table, table, num_tokens)
            await lease.pulled()
        except AsapError as error:
            _log.warning("request %s computes its prompt itself: %s", request.request_id, error)
            self.counts.failed += 1
            return 0
        self.counts.pulled += 1
        return num_tokens

    async def _decode(self, waiter: Waiter, piece: Request) -> None:
        """All passes of what is left to compute of a prompt. Nothing is sent: all they take is attention's."""
        waiter.hand_over(piece)
        batch, began_s = Batch((piece,)), time.monotonic()
        finished = await self._host.step(await self._host.start(batch))
        waiter.add(Stamps(attention_s=time.monotonic() - began_s))
        self._tell(waiter, batch, finished.tokens, is_first=True)
        while finished.next_state is not None:
            finished = await self._host.step(finished.next_state)
            self._tell(waiter, batch, finished.tokens, is_first=False)

    def _tell(self, waiter: Waiter, batch: Batch, tokens: Sequence[Token], *, is_first: bool) -> None:
        self.metrics.passed(batch, tokens, is_first)
        for token in tokens:
            event = waiter.event(token, is_first=is_first)
            waiter.events.put_nowait(event)
            self.metrics.answered(waiter, event)
            if token.finish_reason:
                self._unfinished.discard(token.request_id)
