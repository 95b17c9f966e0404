"""What is done to the processes of an instance, and how long until it serves again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx
from chaos.processes import Process, exists, look

FRONTEND: Final = "frontend"
STRUCK: Final = ("attention group", "attention rank", "MoE device", FRONTEND)
KILL, HANG, STALL = "kill -9", "SIGSTOP", "SIGSTOP, SIGCONT after 3 s"
METHODS: Final = {KILL: 6, STALL: 2, HANG: 2}
"""How often each, of ten."""

STALL_S: Final = 3.0
PATIENCE_S: Final = 240.0
POLL_S: Final = 0.1
OFTEN_S: Final = 60.0
OFTEN: Final = 2
"""Of one kind within `OFTEN_S`: one more and more, and its owner gives a device up, as it should."""

FORGIVE_S: Final = 3.0
"""Behind the frontend's return: Ray Serve's proxy learns of it a little later."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow, and what came of it."""

    role: str
    method: str
    away_s: float  # until the instance was ready again; of a stall, until the process went on


class Striker:
    """Picks victims below a process, one at a time."""

    def __init__(self, root: int, url: str, seed: int) -> None:
        self._root = root
        self._url = url
        self._random = random.Random(seed)
        self._struck_s: dict[str, list[float]] = defaultdict(list)
        self._forgive_until_s = 0.0

    def is_forgiving(self) -> bool:
        """Whether the frontend is away or has just come back."""
        return time.monotonic() < self._forgive_until_s

    def draw(self) -> tuple[str, str]:
        """Any role that has rested, any method."""
        now = time.monotonic()
        rested = [role for role in STRUCK if sum(at_s > now - OFTEN_S for at_s in self._struck_s[role]) < OFTEN]
        present = [process for process in look(self._root) if process.role in rested]
        role = self._random.choice(sorted({process.role for process in present}))
        (method,) = self._random.choices(list(METHODS), list(METHODS.values()))
        return role, method

    async def strike(self, role: str, method: str) -> Strike:
        """One process of a role; returns when the instance is ready again.

        Raises:
            TimeoutError: it is not, within `PATIENCE_S`.
        """
        victim = self._random.choice([process for process in look(self._root) if process.role == role])
        self._struck_s[role].append(time.monotonic())
        if role == FRONTEND:
            self._forgive_until_s = float("inf")
        began_s = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            await self._blow(victim, method, is_owned=role != FRONTEND)
            await self._ready()
            strike = Strike(role, method, time.monotonic() - began_s)
            while method == HANG and exists(victim.pid):  # Ray Serve gives a hung frontend time to drain
                await asyncio.sleep(POLL_S)
        if role == FRONTEND:
            self._forgive_until_s = time.monotonic() + FORGIVE_S
        return strike

    async def _blow(self, victim: Process, method: str, is_owned: bool) -> None:
        """Until it has taken effect: the process goes on; or is gone, where its owner ends it at once."""
        os.kill(victim.pid, signal.SIGKILL if method == KILL else signal.SIGSTOP)
        if method == STALL:
            await asyncio.sleep(STALL_S)
            os.kill(victim.pid, signal.SIGCONT)
            return
        while is_owned and exists(victim.pid):
            await asyncio.sleep(POLL_S)

    async def _ready(self) -> None:
        """Until it says so twice: at once after a kill nobody knows of it yet."""
        async with httpx.AsyncClient(base_url=self._url, timeout=5) as session:
            in_a_row = 0
            while in_a_row < 5:
                in_a_row = in_a_row + 1 if await _is_ready(session) else 0
                await asyncio.sleep(POLL_S)


def table(strikes: Sequence[Strike]) -> str:
    """How often each, and the seconds until ready: medians, least and most."""
    away_s: dict[tuple[str, str], list[float]] = defaultdict(list)
    for strike in strikes:
        away_s[strike.role, strike.method].append(strike.away_s)
    lines = ["| struck | how | times | ready after, s |", "|---|---|---:|---:|"]
    for (role, method), seconds in sorted(away_s.items()):
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        lines.append(f"| {role} | {method} | {len(seconds)} | {middle:.1f} ({least:.1f} to {most:.1f}) |")
    return "\n".join(lines)


async def _is_ready(session: httpx.AsyncClient) -> bool:
    try:
        return (await session.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False
