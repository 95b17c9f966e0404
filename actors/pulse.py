"""Whether the owner of a claim hangs, as a successor on its node can prove: its event loop has stood still for long.

A frontend writes the time into memory of its own, named after its actor, twice a second. Who wants its instance finds
that memory in /proc, reads the time there, and ends a process whose time has stood still: only the dead may be
succeeded (ADR 0008), and one that is stopped would go on some day.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

BEAT_S: Final = 0.5

SILENT_S: Final = 20.0
"""A loop that has not turned for so long hangs. Serve has started no successor before three checks of 10 s failed."""

WATCH_S: Final = 2.0
"""It is watched for so long more: perhaps all of the machine stood still, and the watcher with it."""

_GONE_S: Final = 10.0
"""The kernel needs no longer to end a process, unless it waits for a device."""

_TIME: Final = struct.Struct("<d")
_NAME_BYTES: Final = 200
"""Of an actor's name; the kernel takes 249 bytes for all."""


class Pulse:
    """Of this process."""

    def __init__(self, actor: str) -> None:
        self._fd = os.memfd_create(_memory_of(actor), os.MFD_CLOEXEC)

    async def run(self) -> None:
        """Beat as long as the loop turns."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)

    def beat(self) -> None:
        """The loop turns now. All processes of a node have this clock."""
        os.pwrite(self._fd, _TIME.pack(time.monotonic()), 0)


def end_hung(actors: Collection[str]) -> list[str]:
    """End those of these actors that hang, on this node, and wait until they are dead; who.

    One that is on another node, or has never beaten (it starts), is left alone.
    """
    silent = [name for name in actors if _silent_s(name) > SILENT_S]
    if silent:
        time.sleep(WATCH_S)
    return [name for name in silent if _silent_s(name) > SILENT_S and _end(name)]


def _memory_of(actor: str) -> str:
    return f"pulse-{actor[-_NAME_BYTES:]}"


def _found(actor: str) -> Iterator[Path]:
    """Descriptors of an actor's pulse; none if it is not here."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has gone, or is another user's
            yield from (each for each in (process / "fd").iterdir() if _is_pulse(each, actor))


def _is_pulse(descriptor: Path, actor: str) -> bool:
    """Whether it is, now: others of the process come and go."""
    with contextlib.suppress(OSError):
        # So the kernel calls memory without a name in a file system.
        return str(descriptor.readlink()) == f"/memfd:{_memory_of(actor)} (deleted)"
    return False


def _silent_s(actor: str) -> float:
    """Since its loop has turned last; 0 if nobody can tell."""
    for descriptor in _found(actor):
        with contextlib.suppress(OSError, struct.error):
            return time.monotonic() - float(_TIME.unpack(descriptor.read_bytes())[0])
    return 0.0


def _end(actor: str) -> bool:
    """SIGKILL; whether it is proven dead: one that cannot be found again is not."""
    are_dead = [_kill(descriptor, actor) for descriptor in _found(actor)]
    return bool(are_dead) and all(are_dead)


def _kill(descriptor: Path, actor: str) -> bool:
    try:
        process = os.pidfd_open(int(descriptor.parts[2]))
    except ProcessLookupError:
        return True
    try:
        if not _is_pulse(descriptor, actor):  # the number may be a stranger's by now
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        return bool(select.select([process], [], [], _GONE_S)[0])
    finally:
        os.close(process)
