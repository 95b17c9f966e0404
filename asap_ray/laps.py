"""What a stream spends its time on: one lap after another, with no gap between them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

from asap_ray.tracks import Source


class State(IntEnum):
    """What a lap went to. A rank of attention knows the first six, the streams of a MoE device the others."""

    IDLE = 0  # no batch, or asking the door for one
    START = 1  # a batch's state, before its first layer
    ATTENTION = 2
    DISPATCH = 3  # back-pressure included
    COMBINE = 4
    FINISH = 5  # logits and tokens
    STARVED = 6  # no input
    RECEIVE = 7
    EXPERTS = 8
    SEND = 9
    BLOCKED = 10  # no room for the output


IDLE, START, ATTENTION, DISPATCH, COMBINE, FINISH, STARVED, RECEIVE, EXPERTS, SEND, BLOCKED = State
"""For loops: to look a member up in its class takes 0.1 us (Python 3.11), as long as the rest of a lap."""

_T = TypeVar("_T")

Record: TypeAlias = Callable[[State, float, float, _T | None], None]
"""Takes a lap: what it went to, its begin and end in seconds, and the flight or item it was for."""


def unrecorded(state: State, began_s: float, ended_s: float, item: Any) -> None:
    """Keep no lap, only the totals."""


Recorder: TypeAlias = Callable[[str], Record[Any]]
"""Gives each stream of a device, by its name, what keeps its laps."""


def no_recorder(stream: str) -> Record[Any]:  # noqa: ARG001
    """Nobody records."""
    return unrecorded


Recorders: TypeAlias = Callable[[Source], Recorder]
"""Gives each device what keeps the laps of its streams."""


def no_recorders(source: Source) -> Recorder:  # noqa: ARG001
    """Nobody records."""
    return no_recorder


class Laps(Generic[_T]):
    """The laps of one stream, which alone calls `lap`. `totals_s` is for any thread."""

    __slots__ = ("_last_s", "_now", "_record", "_rest", "_rest_s", "_seconds", "lap")

    def __init__(self, now: Callable[[], float], rest: State, record: Record[_T] = unrecorded) -> None:
        """`rest` is what the stream does when there is nothing to do."""
        self._now = now
        self._record = record
        self._rest = rest
        self._rest_s = 0.0
        self._seconds = [0.0] * len(State)
        self.lap = self._counted_lap if record is unrecorded else self._recorded_lap
        """Say to what the time since the last lap went, and for which item; in seconds."""
        self.restart()

    def restart(self) -> None:
        """The time up to now is no lap."""
        self._last_s = self._now()

    def lap_until(self, ended_s: float, state: State, item: _T | None = None) -> float:
        """The same of a lap that is over."""
        began_s, self._last_s = self._last_s, ended_s
        self._seconds[state] += ended_s - began_s
        self._record(state, began_s, ended_s, item)
        return ended_s - began_s

    def _counted_lap(self, state: State, item: _T | None = None) -> float:  # noqa: ARG002
        ended_s = self._now()
        seconds = ended_s - self._last_s
        self._last_s = ended_s
        self._seconds[state] += seconds
        return seconds

    def _recorded_lap(self, state: State, item: _T | None = None) -> float:
        return self.lap_until(self._now(), state, item)

    def totals_s(self) -> list[float]:
        """Seconds by state, up to now: a lap that goes on counts as rest. None of them ever shrinks.

        So what is said of the rest may be ahead by one lap of another kind.
        """
        open_s = self._now() - self._last_s
        totals_s = list(self._seconds)
        self._rest_s = totals_s[self._rest] = max(self._rest_s, totals_s[self._rest] + open_s)
        return totals_s
