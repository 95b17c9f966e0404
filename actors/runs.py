"""Batches that DP groups run now, a task each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine


class Runs:
    """Which task runs on which group. All methods belong to one asyncio loop."""

    def __init__(self) -> None:
        self._groups: dict[asyncio.Task[None], int] = {}

    def start(self, group: int, run: Coroutine[None, None, None]) -> None:
        """A group is given a batch."""
        task = asyncio.create_task(run)
        self._groups[task] = group
        task.add_done_callback(self._groups.pop)

    def cancel(self, group: int) -> None:
        """What a group runs is not waited for any more, but by the task that says so."""
        for task, its_group in list(self._groups.items()):
            if its_group == group and task is not asyncio.current_task():
                task.cancel()

    async def wait(self, timeout_s: float) -> None:
        """Until nothing runs, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._groups:  # a batch that ends hands over the next piece before it leaves
                    await asyncio.wait(self._groups, return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        """Wait for nothing."""
        running = list(self._groups)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
