"""Which device takes longer than the others of its kind: no deadline ever names it."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from asap_ray.totals import Pace, Spent

LOOK_S: Final = 10.0
"""Between two looks at what devices have computed."""

LEAST_ITEMS: Final = 20
"""Fewer layers of batches say nothing; a device that did fewer between two looks is measured over more of them."""

STILL_LOOKS: Final = 6
"""After so many looks without an item more (a minute: a wait for a device has a deadline) its measure is forgotten."""

SLOW: Final = 5.0
"""So many times the others is told in the log: skew of experts stays below it as a rule."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """What is known of a device."""

    since: Pace = field(default_factory=Pace)  # what it is measured from
    last: Pace = field(default_factory=Pace)
    measured: Pace = field(default_factory=Pace)  # its last measure
    num_still: int = 0  # looks without a layer more

    def saw(self, pace: Pace) -> None:
        """What it has counted up to now; that is its own, and grows."""
        now = pace.copy()
        if now.num_layers != self.last.num_layers:
            self.num_still = 0
        if now.num_layers < self.last.num_layers:  # a successor began anew
            self.since, self.measured = now, Pace()
        self.last = now
        lately = now.since(self.since)
        if lately.num_layers >= LEAST_ITEMS:
            self.since, self.measured = now, lately

    def wait(self) -> None:
        """One more look without a layer, unless `saw` knows better."""
        self.num_still += 1
        if self.num_still > STILL_LOOKS:
            self.measured = Pace()


@dataclass(frozen=True, slots=True)
class _Compared:
    """Layers of a device of sizes that others had too."""

    took: Spent
    usual_s: float  # what they would have taken the others

    @property
    def slowness(self) -> float:
        """So many times as long as the others; 1 if too little can be compared."""
        is_known = self.took.num_layers >= LEAST_ITEMS and self.usual_s > 0
        return self.took.seconds / self.usual_s if is_known else 1.0


class Stragglers:
    """Compares devices with the others of their kind.

    Layers of batches come to all MoE devices alike, so a layer is compared, whatever its rows: one that has the hot
    experts holds up the others too. What a layer costs an attention group depends on its batch and the prompts in it:
    compared are layers of the same size (`size_of`), with what they cost the other groups, and no others.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._slow: set[str] = set()

    def look(self, paces: Mapping[str, Pace]) -> dict[str, float]:
        """How many times as long as the median of the others each device took for the last layers that are enough.

        1 of those that did little lately, or have no others. Says once in the log that one is slow.

        Args:
            paces: of devices, whose names end in their kind and number (`asap:moe:1`).
        """
        for watched in self._watched.values():
            watched.wait()
        for name, pace in paces.items():
            self._watched.setdefault(name, _Watched()).saw(pace)
        compared = {name: self._compare(name) for name in self._watched}
        for name, each in compared.items():
            self._tell(name, each)
        return {name: each.slowness for name, each in compared.items()}

    def _compare(self, name: str) -> _Compared:
        others = [
            each.measured.by_size
            for other, each in self._watched.items()
            if other != name and _kind(other) == _kind(name)
        ]
        took, usual_s = Spent(), 0.0
        for size, spent in self._watched[name].measured.by_size.items():
            layers_s = [other[size].seconds / other[size].num_layers for other in others if size in other]
            if layers_s:
                took.add(spent.seconds, spent.num_layers)
                usual_s += spent.num_layers * statistics.median(layers_s)
        return _Compared(took, usual_s)

    def _tell(self, name: str, compared: _Compared) -> None:
        slowness, took = compared.slowness, compared.took
        if slowness >= SLOW and name not in self._slow:
            self._slow.add(name)
            _log.warning(
                "%s is slow: %.1f times the others (%.3g s a layer, they %.3g s)",
                name,
                slowness,
                took.seconds / took.num_layers,
                compared.usual_s / took.num_layers,
            )
        elif slowness < SLOW / 2 and name in self._slow:
            self._slow.remove(name)
            _log.warning("%s is as fast as the others again", name)


def _kind(name: str) -> str:
    return name.split(":")[-2]


async def watch_stragglers(
    paces: Callable[[], Awaitable[Mapping[str, Pace]]], report: Callable[[str, float], None]
) -> None:
    """Look again and again; for ever."""
    stragglers = Stragglers()
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            for name, slowness in stragglers.look(await paces()).items():
                report(name, slowness)
        except Exception:  # whatever it is, the instance serves, and the next look may be better
            _log.exception("whether a device is slow is not known")
