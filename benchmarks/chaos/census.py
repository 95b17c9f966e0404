"""What an instance holds while nobody asks: anything that grows is a leak."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

import httpx
from chaos.processes import Process, descendants, is_defunct, look

from asap_ray.spec import ParallelSpec

SETTLE_S: Final = 40.0
"""What runs for clients that left ends by itself within this."""

MORE_FDS: Final = 16
"""Descriptors a process of some role may have beyond the first census."""

MORE_MB: Final = 64.0
"""Private memory a process may gain between its second census and its last."""

IDLE: Final = {
    "vllm:num_requests_running": "requests in slots",
    "vllm:num_requests_waiting": "requests in the queue",
    "vllm:kv_cache_usage_perc": "share of KV blocks held",
}


@dataclass(frozen=True, slots=True)
class Census:
    """One look; `wrong` says what should not be."""

    at_s: float
    processes: list[Process]
    num_processes: int
    wrong: list[str]

    def total(self, role: str) -> tuple[int, float, int]:
        """Number, private MB and descriptors of the processes of a role."""
        mine = [each for each in self.processes if each.role == role]
        return len(mine), sum(each.private_mb for each in mine), sum(each.num_fds for each in mine)


class Auditor:
    """Takes each census and compares it with those before."""

    def __init__(self, root: int, url: str, parallel: ParallelSpec) -> None:
        self._root = root
        self._url = url
        ranks = parallel.dp_groups * parallel.tp
        self._counts = {
            "attention group": parallel.dp_groups,
            "attention rank": ranks - parallel.dp_groups,
            "MoE device": parallel.moe_devices,
            "frontend": 1,
        }
        self._segments = {
            "attention group": 2 + parallel.moe_devices,  # its results, its pages, the buffers of the devices
            "attention rank": 2 + parallel.moe_devices,
            "MoE device": 1 + ranks,
        }
        self._first_fds: dict[str, int] = {}
        self._memory_mb: dict[int, list[float]] = defaultdict(list)

    async def take(self) -> Census:
        """Wait until nothing is held any more, then look at every process."""
        deadline_s = time.monotonic() + SETTLE_S
        while (held := [*await self._held(), *self._miscounted()]) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.2)
        processes = look(self._root)
        below = list(descendants(self._root))
        wrong = [*held, *self._grown(processes)]
        return Census(time.monotonic(), processes, len(below), wrong)

    async def _held(self) -> list[str]:
        """What the frontend says it holds."""
        async with httpx.AsyncClient(base_url=self._url, timeout=10) as session:
            try:
                text = (await session.get("/metrics")).text
                num_open = (await session.get("/leases")).json()["open"]
            except (httpx.TransportError, ValueError, KeyError) as error:
                return [f"the frontend does not tell: {error!r}"]
        values = {name: float(value) for name, value in re.findall(r"^([\w:]+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}
        held = [f"{values.get(name, 1):g} {what}" for name, what in IDLE.items() if values.get(name, 1)]
        return [*held, *([f"{num_open} leases open"] if num_open else [])]

    def _miscounted(self) -> list[str]:
        """Processes that are too many or too few, dead but not collected, or hold another's buffer."""
        processes = look(self._root)
        counts = Counter(each.role for each in processes)
        wrong = [f"{counts[role]} of {role}, not {n}" for role, n in self._counts.items() if counts[role] != n]
        wrong += [
            f"{each.role} {each.pid} has mapped {each.num_segments} segments, not {self._segments[each.role]}"
            for each in processes
            if each.num_segments != self._segments.get(each.role, 0)
        ]
        return [*wrong, *(f"{pid} is defunct" for pid in descendants(self._root) if is_defunct(pid))]

    def _grown(self, processes: list[Process]) -> list[str]:
        wrong = []
        for each in processes:
            most_fds = self._first_fds.setdefault(each.role, each.num_fds) + MORE_FDS
            if each.num_fds > most_fds:
                wrong.append(f"{each.role} {each.pid} has {each.num_fds} descriptors, at most {most_fds} expected")
            seen_mb = self._memory_mb[each.pid]
            seen_mb.append(each.private_mb)
            if len(seen_mb) > 2 and seen_mb[-1] > seen_mb[1] + MORE_MB:
                wrong.append(f"{each.role} {each.pid} grew from {seen_mb[1]:.0f} to {seen_mb[-1]:.0f} MB")
        return wrong

    def growth_mb(self) -> dict[int, tuple[int, float]]:
        """Of each process that was seen three times or more: looks, and what it gained since the second."""
        return {pid: (len(mb), mb[-1] - mb[1]) for pid, mb in self._memory_mb.items() if len(mb) > 2}
