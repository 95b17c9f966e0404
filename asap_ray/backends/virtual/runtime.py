"""The runtime of virtual time: streams are tasks on one heap, an await suspends, time jumps to the next event."""

from __future__ import annotations

import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import CoroutineType
from typing import Any, cast

from asap_ray.errors import PeerTimeout

Stream = Coroutine[Any, Any, Any]


class Signal(list[Stream]):
    """Streams parked until something changes; `what` says for what."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what


class VirtualRuntime:
    """Runs streams until the first one given to `run` ends. Equal times keep the order in which they were set."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._heap: list[tuple[float, int, Stream | Callable[[], None]]] = []
        self._ready: deque[Stream] = deque()
        self._signals: list[Signal] = []
        self._ends: dict[Stream, Callable[[], None]] = {}
        self.num_events = 0
        self._num_timers = 0  # breaks ties: equal times keep the order in which they were set

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def signal(self, what: str) -> Signal:
        """A place to park, named for the message of a deadlock."""
        signal = Signal(what)
        self._signals.append(signal)
        return signal

    @types.coroutine
    def sleep(self, seconds: float) -> Generator[float, None, None]:
        """Let virtual time pass."""
        yield seconds

    @types.coroutine
    def park(self, signal: Signal) -> Generator[Signal, None, None]:
        """Wait until `wake(signal)`; the caller checks again what it waited for."""
        yield signal

    def wake(self, signal: Signal) -> None:
        """Let every stream parked there go on, at this time."""
        if signal:
            self._ready.extend(signal)
            signal.clear()

    def call_at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call `action` when that time comes."""
        self._num_timers += 1
        heapq.heappush(self._heap, (max(time_s, self._now_s), self._num_timers, action))

    def spawn(self, stream: Stream, on_end: Callable[[], None] = lambda: None) -> None:
        """Start a stream beside the others; its error ends the run."""
        self._ends[stream] = on_end
        self._ready.append(stream)

    def queue(self, capacity: int) -> VirtualQueue:
        """A bounded queue between two streams."""
        return VirtualQueue(self, capacity)

    async def gather(self, *streams: Coroutine[Any, Any, None]) -> None:
        """Run streams side by side until all have ended; the first error ends the run and is raised by it."""
        ended = self.signal("streams to end")
        going = len(streams)

        def end() -> None:
            nonlocal going
            going -= 1
            self.wake(ended)

        for stream in streams:
            self.spawn(stream, end)
        while going:
            await self.park(ended)

    def run(self, main: Stream) -> None:
        """Drive everything until `main` ends; what still runs then is closed.

        Raises:
            PeerTimeout: nothing can ever happen again; the text says who waits for what.
        """
        done = False

        def end() -> None:
            nonlocal done
            done = True

        self.spawn(main, end)
        try:
            while not done:
                self._step(self._ready.popleft() if self._ready else self._next())
        finally:
            for stream in list(self._ends):
                stream.close()
            self._ends.clear()

    def _step(self, due: Stream | Callable[[], None]) -> None:
        """Run a stream up to its next wait, or call an action."""
        self.num_events += 1
        if type(due) is not CoroutineType:
            cast("Callable[[], None]", due)()
            return
        try:
            wanted = due.send(None)
        except StopIteration:
            self._ends.pop(due)()
            return
        if type(wanted) is float:
            self._num_timers += 1
            heapq.heappush(self._heap, (self._now_s + wanted, self._num_timers, due))
        else:
            wanted.append(due)

    def _next(self) -> Stream | Callable[[], None]:
        """Jump to the next time something is due."""
        if not self._heap:
            waits = ", ".join(f"{len(signal)} for {signal.what}" for signal in self._signals if signal)
            raise PeerTimeout(
                f"virtual time stopped at {self._now_s:.6f} s; streams wait for ever: {waits or 'nobody'}"
            )
        self._now_s, _, due = heapq.heappop(self._heap)
        return due


class VirtualQueue:
    """A bounded FIFO between streams of one runtime."""

    def __init__(self, runtime: VirtualRuntime, capacity: int) -> None:
        self._runtime = runtime
        self._capacity = capacity
        self._values: deque[Any] = deque()
        self._room = runtime.signal("room in a queue")
        self._filled = runtime.signal("a value in a queue")

    async def put(self, value: Any) -> None:
        """Wait for room, then append."""
        while len(self._values) >= self._capacity:
            await self._runtime.park(self._room)
        self._values.append(value)
        self._runtime.wake(self._filled)

    async def get(self) -> Any:
        """Wait for a value, then take it."""
        while not self._values:
            await self._runtime.park(self._filled)
        value = self._values.popleft()
        self._runtime.wake(self._room)
        return value
