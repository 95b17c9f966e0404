"""DP groups without an engine: the answer to a prompt is the prompt again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np

from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.errors import DeviceLost
from asap_ray.messages import Pages


def prompt_ids(request: Request) -> list[int]:
    """Token ids of a request as the engine reads them."""
    return np.frombuffer(request.token_ids, dtype="<i4").tolist()


def echo(request: Request, step: int) -> int:
    """The rule of the double: the answer is the prompt again."""
    ids = prompt_ids(request)
    return ids[step % len(ids)]


@dataclass
class EchoGroups:
    """`Groups` without an engine. `gate` holds every batch back; `failure` is raised instead of tokens."""

    num_groups: int = 2
    num_blocks: int = 0  # no cache
    block_size: int = 64
    logprob: float = -0.5
    failure: Exception | None = None
    fail_after: int = 0  # passes
    lost_group: int | None = None
    max_passes: int | None = None  # then the stream ends, finished or not
    absent: tuple[str, ...] = ()
    is_recovering: bool = False
    serves_on: bool = False  # after it failed a batch
    asked: list[int] = field(default_factory=list)  # whether they serve on
    reports: list[tuple[int, str]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    batches: list[Batch] = field(default_factory=list)
    started: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    num_finished: int = 0
    made: Counter[str] = field(default_factory=Counter)  # tokens, by request
    aborted: dict[tuple[int, str], int] = field(default_factory=dict)  # by group and request, the tokens made before
    prompts: dict[str, bytes] = field(default_factory=dict)  # as far as their pieces have come
    pages: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (group, block) -> the tokens in it

    def missing(self) -> tuple[str, ...]:
        """See `Groups`."""
        return self.absent

    async def serves(self, group: int) -> bool:
        """See `Groups`."""
        self.asked.append(group)
        return self.serves_on

    def report(self, group: int, reason: str) -> None:
        """See `Groups`."""
        self.reports.append((group, reason))

    def shared_pages(self, group: int) -> tuple[Pages, ...]:  # noqa: ARG002
        """See `Groups`; nobody pulls them."""
        return ()

    def abort(self, group: int, request_ids: Sequence[str]) -> None:
        """See `Groups`."""
        for request_id in request_ids:
            self.aborted.setdefault((group, request_id), self.made[request_id])

    async def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """See `Groups`; each pass takes one turn of the loop."""
        assert 0 <= group < self.num_groups
        self.batches.append(batch)
        self.started.put_nowait(group)
        if self.gate:
            await self.gate.wait()
        stamps = Stamps(attention_s=0.25, dispatch_s=0.125, combine_s=0.5, total_s=1.0)
        for request in batch.requests:
            before = self._cached(group, request) if request.is_first else self.prompts[request.request_id]
            self._keep(group, request, before + request.token_ids)
        unfinished = [request for request in batch.requests if not request.future_tokens]
        step = 0
        while (unfinished or step == 0) and step != self.max_passes:
            await asyncio.sleep(0)
            if self.failure and step == self.fail_after:
                raise self.failure
            if group == self.lost_group:
                raise DeviceLost(f"group {group} is gone")
            tokens = tuple(self._token(group, request, step) for request in unfinished)
            self.made.update(token.request_id for token in tokens)
            unfinished = [r for r, token in zip(unfinished, tokens, strict=True) if token.finish_reason is None]
            step += 1
            yield tokens, stamps
        self.num_finished += 1

    def _cached(self, group: int, request: Request) -> bytes:
        """The tokens of its blocks that it says are there."""
        tokens = b"".join(self.pages[group, block] for block in request.table if (group, block) in self.pages)
        return tokens[: 4 * request.cached_tokens]

    def _keep(self, group: int, request: Request, tokens: bytes) -> None:
        self.prompts[request.request_id] = tokens
        size = 4 * self.block_size
        for place, block in enumerate(request.table):
            self.pages[group, block] = tokens[place * size : (place + 1) * size]

    def _token(self, group: int, request: Request, step: int) -> Token:
        prompt = replace(request, token_ids=self.prompts[request.request_id])
        sampling, token_id = request.sampling, echo(prompt, step)
        is_last, is_unwanted = step + 1 == sampling.max_tokens, (group, request.request_id) in self.aborted
        reason = "length" if is_last else "abort" if is_unwanted else None
        return Token(
            request_id=request.request_id,
            token_id=token_id,
            logprob=None if sampling.num_logprobs is None else self.logprob,
            top_logprobs=tuple((token_id + k, self.logprob - k) for k in range(sampling.num_logprobs or 0)),
            finish_reason="stop" if token_id in sampling.stop_token_ids else reason,
        )


def events_of(response: httpx.Response) -> list[Any]:
    """The server-sent events of a stream, parsed; the end mark as it is."""
    contents = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    return [content if content == "[DONE]" else json.loads(content) for content in contents]
