"""What a server said of itself during a replay, looked at once a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from asap_ray.dashboards.looks import Look, Span
from asap_ray.telemetry import frontend

SAMPLE_S: Final = 1.0

ReadLook = Callable[[], Awaitable[Look]]
"""An empty look where a server says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Share of the time since the sample before that a device computed."""

    t_s: float  # from the start of the replay
    device: str  # "attention:0", "moe:1"
    busy: float  # 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that were there at a time; rates are of the time since the sample before."""

    t_s: float  # from the start of the replay
    running: float
    waiting: float
    prompt_tokens_per_s: float
    kv_cache_usage: float | None  # 0 to 1, of blocks; None where a server does not say
    prefix_hits: float | None  # 0 to 1, of prompt tokens; None where none was looked up


@dataclass(slots=True)
class Watch:
    """All samples of a replay, in their order."""

    utilisation: list[Utilisation] = field(default_factory=list)
    load: list[Load] = field(default_factory=list)

    def saw(self, span: Span, t_s: float) -> None:
        """Take from two looks what both have."""
        for device in sorted(span.now.duty):
            busy = span.device_rate(device, "compute_s")
            if busy is not None:
                self.utilisation.append(Utilisation(t_s=t_s, device=device, busy=min(1.0, busy)))
        is_one = span.now.engine == span.before.engine  # else their difference is of two replicas
        if is_one and span.now.has(frontend.RUNNING) and span.before.has(frontend.RUNNING):
            self.load.append(_load(span, t_s))

    @contextlib.asynccontextmanager
    async def over(self, read: ReadLook) -> AsyncIterator[None]:
        """Look once a second while the block runs."""
        task = asyncio.create_task(self._look(read))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self, read: ReadLook) -> None:
        before = first = await read()
        while True:
            await asyncio.sleep(SAMPLE_S)
            now = await read()
            self.saw(Span(before, now), now.at_s - first.at_s)
            before = now


def _load(span: Span, t_s: float) -> Load:
    looked_up = span.growth(frontend.PREFIX_QUERIES)
    has_cache = span.now.has(frontend.KV_CACHE_USAGE)
    return Load(
        t_s=t_s,
        running=span.now.total(frontend.RUNNING),
        waiting=span.now.total(frontend.WAITING),
        prompt_tokens_per_s=span.rate(frontend.PROMPT_TOKENS),
        kv_cache_usage=span.now.total(frontend.KV_CACHE_USAGE) if has_cache else None,
        prefix_hits=span.growth(frontend.PREFIX_HITS) / looked_up if looked_up else None,
    )
