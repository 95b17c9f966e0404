"""How busy each device was during a replay, sampled from totals it reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from asap_ray.evaluation.replay_report import Utilisation

SAMPLE_S: Final = 1.0


ReadDuty = Callable[[], Awaitable[Mapping[str, float]]]
"""Seconds each device has computed since its start, by name."""


@contextlib.asynccontextmanager
async def sampled(read: ReadDuty, samples: list[Utilisation]) -> AsyncIterator[None]:
    """Append to `samples` while the block runs."""
    task = asyncio.create_task(_sample(read, samples))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(read: ReadDuty, samples: list[Utilisation]) -> None:
    now = asyncio.get_running_loop().time
    start_s = last_s = now()
    last = await read()
    while True:
        await asyncio.sleep(SAMPLE_S)
        current, current_s = await read(), now()
        for device in sorted(current.keys() & last.keys()):
            busy = (current[device] - last[device]) / (current_s - last_s)
            samples.append(Utilisation(t_s=current_s - start_s, device=device, busy=min(1.0, max(0.0, busy))))
        last, last_s = current, current_s
