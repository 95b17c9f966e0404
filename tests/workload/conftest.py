"""An asyncio event loop in virtual time: nothing waits, and times are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class _Selector(selectors.SelectSelector):
    """Instead of waiting for a timeout, moves the clock there."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits for something that cannot happen"
        self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes when all tasks sleep, or when one says that it computes."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.now_s

    def compute(self, seconds: float) -> None:
        """Keep the loop busy: no other task runs meanwhile."""
        self._clock.now_s += seconds


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """asyncio.run in virtual time."""

    def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(coroutine)

    return run_virtually
