"""What a frontend has seen of its devices' health, in plain numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Start:
    """An instance began to serve."""

    how: str  # "attached" to devices that ran, or "created" them
    seconds: float
    at_s: float  # time.time()


@dataclass(slots=True)
class Vitals:
    """`PrefillInstance` writes it down; metrics are made of it once a second."""

    up: dict[str, bool]  # by device
    losses: Counter[str] = field(default_factory=Counter)
    start: Start | None = None  # the last one

    @classmethod
    def of(cls, names: Iterable[str]) -> Vitals:
        """Nobody serves yet."""
        return cls(dict.fromkeys(names, False))

    def saw(self, states: Mapping[str, str]) -> None:
        """The devices were asked."""
        for name, state in states.items():
            if state == SERVING:
                self.back(name)
            else:
                self.lost(name)

    def lost(self, name: str) -> None:
        """A device does not serve; if it did before, that is a loss."""
        self.losses[name] += self.up[name]
        self.up[name] = False

    def back(self, name: str) -> None:
        """It serves."""
        self.up[name] = True

    def started(self, how: str, seconds: float) -> None:
        """The instance serves."""
        self.up = dict.fromkeys(self.up, True)
        self.start = Start(how, seconds, time.time())
