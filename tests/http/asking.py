"""Clients of a `PrefillService`, without HTTP between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from asap_ray.actors.service import PrefillService
from asap_ray.actors.waiter import TokenEvent
from asap_ray.batch import Request, Sampling


def request(name: str, num_tokens: int = 20, max_tokens: int = 1, arrival_s: float = 0.0) -> Request:
    """A prompt that makes a batch of its own: 16 tokens close one."""
    return Request(
        request_id=name,
        num_tokens=num_tokens,
        arrival_s=arrival_s,
        token_ids=np.full(num_tokens, 7, dtype="<i4").tobytes(),
        sampling=Sampling(max_tokens=max_tokens),
    )


async def tokens_of(service: PrefillService, requests: Sequence[Request]) -> list[TokenEvent]:
    """All tokens of one client."""
    return [event async for event in service.generate(requests)]


async def queue(service: PrefillService, name: str, num_tokens: int = 20) -> asyncio.Task[list[TokenEvent]]:
    """One more client; it has queued its prompt when this returns."""
    task = asyncio.create_task(tokens_of(service, [request(name, num_tokens)]))
    await asyncio.sleep(0)  # a task runs up to its first wait
    return task
