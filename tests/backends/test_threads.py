"""The thread runtime: streams, queues, and an end that everybody hears of."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from asap_ray.backends.threads import ThreadRuntime, drive
from asap_ray.errors import Closed


def test_a_queue_keeps_its_order_and_its_bound() -> None:
    """Values arrive in order though the queue holds one at a time."""
    runtime = ThreadRuntime()
    queue = runtime.queue(1)
    received: list[int] = []

    async def produce() -> None:
        for value in range(100):
            await queue.put(value)

    async def consume() -> None:
        for _ in range(100):
            received.append(await queue.get())

    drive(runtime.gather(produce(), consume()))

    assert received == list(range(100))


def test_the_first_failure_ends_the_others_and_is_raised() -> None:
    """A stream that fails closes the runtime; the one that waits leaves, and the cause is reported."""
    runtime = ThreadRuntime()
    queue = runtime.queue(1)

    async def wait() -> None:
        await queue.get()

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(runtime.gather(wait(), fail()))


def test_close_reaches_native_waits() -> None:
    """`close` calls every abort it was given."""
    runtime = ThreadRuntime()
    aborted = threading.Event()
    runtime.on_close(aborted.set)

    runtime.close()

    assert aborted.is_set()


def test_a_closed_runtime_refuses_to_wait() -> None:
    """A wait that begins after the close raises at once."""
    runtime = ThreadRuntime()
    runtime.close()

    with pytest.raises(Closed):
        drive(runtime.queue(1).get())


def test_a_stream_that_suspends_is_a_bug() -> None:
    """On a blocking backend no await suspends; a coroutine that does is refused loudly."""

    class Suspend:
        def __await__(self) -> Any:
            yield

    async def stream() -> None:
        await Suspend()

    suspending: Coroutine[Any, Any, None] = stream()
    with pytest.raises(AssertionError, match="suspended"):
        drive(suspending)
