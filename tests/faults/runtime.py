"""Virtual time that is shaken: any stream may go first, any await may take long, and processes die at one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from asap_ray.backends.virtual.runtime import Signal, Stream, VirtualQueue, VirtualRuntime

SLOW = 0.02
"""The share of awaits that take long."""


class ShakenRuntime(VirtualRuntime):
    """A `VirtualRuntime` whose every choice comes from one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.rings = 0
        self._changed = self.signal("a flag to change")  # of anybody: who waits looks again
        self.log: list[str] = []
        self._dead: set[Stream] = set()
        self._due: list[tuple[int, Callable[[], None]]] = []

    def note(self, text: str) -> None:
        """A line of what happened; equal seeds have equal lines."""
        self.log.append(f"{self.num_events} {text}")

    def at_await(self, number: int, action: Callable[[], None]) -> None:
        """Act between two steps of streams, before the `number`-th from the start."""
        self._due.append((number, action))
        self._due.sort(key=lambda due: due[0], reverse=True)

    def ring(self) -> None:
        """A flag has changed: the doorbell of everybody (`wait.hpp`)."""
        self.rings += 1
        self.wake(self._changed)

    async def until_rung(self, seen: int) -> None:
        """Wait unless it has rung since `seen`, which is what `rings` was before the flags were looked at."""
        if self.rings == seen:
            await self.park(self._changed)

    async def pause(self) -> None:
        """Between two steps of a primitive: others go on, or everything of somebody else happens."""
        await self.sleep(self.random.random() * (100.0 if self.random.random() < SLOW else 1.0))

    def kill(self, streams: list[Stream]) -> None:
        """They stop where they are; nothing of theirs runs any more."""
        for stream in streams:
            self._dead.add(stream)
            self._ends.pop(stream, None)
            stream.close()

    def _step(self, due: Stream | Callable[[], None]) -> None:
        while self._due and self._due[-1][0] <= self.num_events:
            self._due.pop()[1]()
        if due in self._dead:
            return
        if self._ready and self.random.random() < 0.5:
            self._ready.rotate(self.random.randrange(len(self._ready)))
        super()._step(due)


class Process:
    """`Runtime` of one process: its streams die together."""

    def __init__(self, runtime: ShakenRuntime, name: str) -> None:
        self.name = name
        self.is_alive = True
        self._runtime = runtime
        self._streams: list[Stream] = []

    def now(self) -> float:
        """See `Runtime`."""
        return self._runtime.now()

    def queue(self, capacity: int) -> VirtualQueue:
        """See `Runtime`."""
        return self._runtime.queue(capacity)

    async def gather(self, *streams: Coroutine[Any, Any, None]) -> None:
        """See `Runtime`."""
        for stream in streams:
            self.spawn(stream)
        await self._runtime.park(Signal("the end of a process"))  # its loops have none

    def spawn(self, stream: Stream) -> None:
        """Start a stream of this process."""
        self._streams.append(stream)
        self._runtime.spawn(stream)

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False
        self._runtime.kill(self._streams)
        self._runtime.ring()


class Lock:
    """The mutex of an attention rank: steps of its primitives hold it, waits do not."""

    def __init__(self, runtime: ShakenRuntime) -> None:
        self._runtime = runtime
        self._freed = Signal("the lock of a rank")
        self._is_taken = False

    async def __aenter__(self) -> None:
        while self._is_taken:
            await self._runtime.park(self._freed)
        self._is_taken = True

    async def __aexit__(self, *_: object) -> None:
        self._is_taken = False
        self._runtime.wake(self._freed)
