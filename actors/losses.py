"""Which devices of an instance stopped serving, and why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from asap_ray.backends.node import node_name
from asap_ray.messages import Registration

MAX_RESTARTS: Final = 3
RESTARTS_S: Final = 60.0
"""A device that is lost more than so many times within so long is not brought back: something kills it."""

EndOf = Callable[[str], Coroutine[Any, Any, str]]


class Losses:
    """Watches every device for its end, one task a device. All methods belong to one asyncio loop."""

    def __init__(self, end_of: EndOf) -> None:
        """`end_of` waits until a device no longer serves, and says why."""
        self._end_of = end_of
        self._watched: dict[str, asyncio.Task[str]] = {}
        self._reported: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._dropped_s: dict[str, list[float]] = {}

    def watch(self, names: Iterable[str]) -> None:
        """From now on, as what they are now."""
        for name in names:
            self._watched[name] = task = asyncio.create_task(self._end_of(name))
            task.add_done_callback(lambda _: self._changed.set())

    def report(self, name: str, reason: str) -> None:
        """Somebody who uses a device says that it failed; of one that is not watched this is known."""
        if name in self._watched:
            self._reported[name] = reason
            self._changed.set()

    @property
    def now(self) -> dict[str, str]:
        """Devices that are watched and lost, and why."""
        return self._reported | {name: task.result() for name, task in self._watched.items() if task.done()}

    async def next(self) -> dict[str, str]:
        """Wait until `now` is not empty."""
        while not self.now:
            await self._changed.wait()
            self._changed.clear()
        return self.now

    def drop(self, names: Collection[str]) -> list[str]:
        """Watch these no more, they are lost; those of them that were too often lately."""
        now = time.monotonic()
        for name in names:
            if task := self._watched.pop(name, None):
                task.cancel()
            self._reported.pop(name, None)
            lately = [at_s for at_s in self._dropped_s.get(name, ()) if at_s > now - RESTARTS_S]
            self._dropped_s[name] = [*lately, now]
        return [name for name in names if len(self._dropped_s[name]) > MAX_RESTARTS]

    def close(self) -> None:
        """Watch nobody any more."""
        for task in self._watched.values():
            task.cancel()


async def process_ended(device: Registration) -> str:
    """Wait until the process of a device on this node ends; the kernel tells at once, before Ray does."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        process = os.pidfd_open(device.pid)
    except ProcessLookupError:
        return f"process {device.pid} is gone"
    loop.add_reader(process, ended.set)
    try:
        if _is_there(device):  # else its number may be another's
            await ended.wait()
        return f"process {device.pid} ended"
    finally:
        loop.remove_reader(process)
        os.close(process)


async def end_processes(registered: Collection[Registration], poll_s: float) -> None:
    """SIGKILL what is left of lost devices on this node and wait until it is gone.

    Only the dead may be replaced (docs/verify.md, rule 1); who failed or hangs is not. A process that has since taken
    the number of a dead one is left alone.
    """
    here = list(filter(is_here, registered))
    for device in here:
        if _is_there(device):
            with contextlib.suppress(ProcessLookupError):
                os.kill(device.pid, signal.SIGKILL)
    while any(map(_is_there, here)):
        await asyncio.sleep(poll_s)


def is_here(device: Registration) -> bool:
    """Whether a device is on the node of this process."""
    return device.node == node_name()


def _is_there(device: Registration) -> bool:
    """Whether the process lives and has the buffer it registered."""
    try:
        return str(Path(f"/proc/{device.pid}/fd/{device.fd}").readlink()).startswith("/memfd:asap-")
    except OSError:
        return False
