"""Which MoE device takes longer than the others: it holds up everybody, and no deadline ever names it."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from asap_ray.batch import Duty

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

    since: Duty = field(default_factory=Duty.zero)  # what it is measured from
    last: Duty = field(default_factory=Duty.zero)
    layer_s: float | None = None  # of a batch: its last measure
    num_still: int = 0  # looks without an item more

    def saw(self, duty: Duty) -> None:
        """Its totals now; they are its own, and grow."""
        if duty.num_items != self.last.num_items:
            self.num_still = 0
        if duty.num_items < self.last.num_items:  # a successor began anew
            self.since, self.layer_s = replace(duty), None
        self.last = replace(duty)
        num_items = duty.num_items - self.since.num_items
        if num_items >= LEAST_ITEMS:
            self.layer_s = (duty.compute_s - self.since.compute_s) / num_items
            self.since = self.last

    def wait(self) -> None:
        """One more look without an item, unless `saw` knows better."""
        self.num_still += 1
        if self.num_still > STILL_LOOKS:
            self.layer_s = None


class Stragglers:
    """Compares MoE devices.

    Layers of batches come to all of them alike, so a layer is compared, whatever its rows: one that has the hot experts
    holds up the others too. Attention groups are not compared: what a token costs one depends on its batch and prompt,
    between 16 tokens a batch and 2048 by more than `SLOW`.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._slow: set[str] = set()

    def look(self, duties: Mapping[str, Duty]) -> dict[str, float]:
        """How many times as long as the median of the others each device took for the last items that are enough.

        1 of those that did little lately, or have no others. Says once in the log that one is slow.

        Args:
            duties: totals of devices, whose names end in their kind and number (`asap:moe:1`).
        """
        for watched in self._watched.values():
            watched.wait()
        for name, duty in duties.items():
            if name.split(":")[-2] == "moe":
                self._watched.setdefault(name, _Watched()).saw(duty)
        return {name: self._slowness(name) for name in self._watched}

    def _slowness(self, name: str) -> float:
        layer_s = self._watched[name].layer_s
        others_s = [each.layer_s for other, each in self._watched.items() if other != name and each.layer_s is not None]
        usual_s = statistics.median(others_s) if others_s else 0.0
        if layer_s is None or not usual_s:
            return 1.0
        self._tell(name, layer_s / usual_s, layer_s, usual_s)
        return layer_s / usual_s

    def _tell(self, name: str, slowness: float, layer_s: float, usual_s: float) -> None:
        if slowness >= SLOW and name not in self._slow:
            self._slow.add(name)
            _log.warning(
                "%s is slow: %.1f times the others (%.3g s a layer, they %.3g s)", name, slowness, layer_s, usual_s
            )
        elif slowness < SLOW / 2 and name in self._slow:
            self._slow.remove(name)
            _log.warning("%s is as fast as the others again", name)


async def watch_stragglers(
    duty: Callable[[], Awaitable[Mapping[str, Duty]]], report: Callable[[str, float], None]
) -> None:
    """Look again and again; for ever."""
    stragglers = Stragglers()
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            for name, slowness in stragglers.look(await duty()).items():
                report(name, slowness)
        except Exception:  # whatever it is, the instance serves, and the next look may be better
            _log.exception("whether a device is slow is not known")
