"""The runtime of real devices: a stream is a thread, an await blocks in it, time is the clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asap_ray.errors import Closed, DeviceLost

_T = TypeVar("_T")


def drive(stream: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine none of whose awaits suspends."""
    try:
        stream.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    stream.close()
    raise AssertionError("a blocking backend suspended")


class ThreadRuntime:
    """Streams as threads. `close` wakes whoever waits in a queue and calls the aborts given by `on_close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._failure: DeviceLost | None = None
        self._aborts: list[Callable[[], None]] = []

    def on_close(self, abort: Callable[[], None]) -> None:
        """Also call `abort` on close: it must make native waits raise Closed. At once if it is closed already."""
        with self._changed:
            self._aborts.append(abort)
            is_late = self._closed
        if is_late:
            abort()

    def close(self) -> None:
        """Every present and later wait of this runtime raises Closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            aborts = [*self._aborts]
        for abort in aborts:
            abort()

    def fail(self, error: DeviceLost) -> None:
        """Close, and have `serve_out` raise this."""
        self._failure = error
        self.close()

    def serve_out(self, stream: Coroutine[Any, Any, None]) -> None:
        """Drive a stream until `close`.

        Raises:
            DeviceLost: that of `fail`.
        """
        try:
            drive(stream)
        except Closed:
            if self._failure:
                raise self._failure from None

    def wait_for(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `ready()`; False at the timeout. The caller holds `changed`."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            if ready():
                return True
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self._changed.wait(left_s)
        raise Closed("the instance is stopping")

    @property
    def changed(self) -> threading.Condition:
        """The lock of everything that waits in this runtime; notify it after a change."""
        return self._changed

    def queue(self, capacity: int) -> ThreadQueue:
        """A bounded queue between two threads."""
        return ThreadQueue(self, capacity)

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    async def gather(self, *streams: Coroutine[Any, Any, None]) -> None:
        """Run each stream in a thread; the first failure closes the runtime and is raised."""
        failures: list[BaseException] = []

        def run(stream: Coroutine[Any, Any, None]) -> None:
            try:
                drive(stream)
            except BaseException as failure:  # crosses a thread: re-raised below
                failures.append(failure)
                self.close()

        threads = [threading.Thread(target=run, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise next((f for f in failures if not isinstance(f, Closed)), failures[0])


class ThreadQueue:
    """A bounded FIFO; waits end with Closed when the runtime closes."""

    def __init__(self, runtime: ThreadRuntime, capacity: int) -> None:
        self._runtime = runtime
        self._capacity = capacity
        self._values: deque[Any] = deque()

    async def put(self, value: Any) -> None:
        """Wait for room, then append."""
        with self._runtime.changed:
            self._runtime.wait_for(lambda: len(self._values) < self._capacity)
            self._values.append(value)
            self._runtime.changed.notify_all()

    async def get(self) -> Any:
        """Wait for a value, then take it."""
        with self._runtime.changed:
            self._runtime.wait_for(lambda: bool(self._values))
            value = self._values.popleft()
            self._runtime.changed.notify_all()
            return value
