"""Which device takes longer than the others of its kind: it holds up everybody, and no deadline ever names it."""

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

SLOW: Final = 5.0
"""So many times the others is told in the log: skew of experts and of prompt lengths stays below it as a rule."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """What is known of a device."""

    since: Duty = field(default_factory=Duty.zero)  # what it is measured from
    last: Duty = field(default_factory=Duty.zero)
    unit_s: float | None = None  # its last measure: seconds of a MoE device's layer, of a group's token in a layer

    def saw(self, duty: Duty, is_moe: bool) -> None:
        """Its totals now; they are its own, and grow."""
        if duty.num_items < self.last.num_items:  # a successor began anew
            self.since, self.unit_s = replace(duty), None
        self.last = replace(duty)
        num_items = duty.num_items - self.since.num_items
        num_units = num_items if is_moe else duty.num_rows - self.since.num_rows
        if num_items >= LEAST_ITEMS and num_units > 0:
            self.unit_s = (duty.compute_s - self.since.compute_s) / num_units
            self.since = self.last


class Stragglers:
    """Compares devices, whose names end in their kind and number (`asap:moe:1`)."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._slow: set[str] = set()

    def look(self, duties: Mapping[str, Duty]) -> dict[str, float]:
        """How many times as long as the median of the others each device took for the last items that are enough.

        Layers of batches come to all MoE devices alike, so of them a layer is compared, whatever its rows: one that has
        the hot experts holds up the others too. Groups run batches of different sizes: of them a token is. Devices that
        did little, or have no others of their kind, are left out. Says once in the log that one is slow.
        """
        for name, duty in duties.items():
            self._watched.setdefault(name, _Watched()).saw(duty, _kind(name) == "moe")
        units_s = {name: each.unit_s for name, each in self._watched.items() if each.unit_s is not None}
        slowness = {}
        for name, unit_s in units_s.items():
            others_s = [other_s for other, other_s in units_s.items() if other != name and _kind(other) == _kind(name)]
            if others_s and (usual_s := statistics.median(others_s)):
                slowness[name] = unit_s / usual_s
                self._tell(name, slowness[name], unit_s, usual_s)
        return slowness

    def _tell(self, name: str, slowness: float, unit_s: float, usual_s: float) -> None:
        if slowness >= SLOW and name not in self._slow:
            self._slow.add(name)
            _log.warning(
                "%s is slow: %.1f times the others of its kind (%.3g s, they %.3g s)", name, slowness, unit_s, usual_s
            )
        elif slowness < SLOW / 2 and name in self._slow:
            self._slow.remove(name)
            _log.warning("%s is as fast as the others again", name)


def _kind(name: str) -> str:
    return name.split(":")[-2]


async def watch_stragglers(
    duty: Callable[[], Awaitable[Mapping[str, Duty]]], report: Callable[[str, float], None]
) -> None:
    """Look again and again; for ever."""
    stragglers = Stragglers()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            for name, slowness in stragglers.look(await duty()).items():
                report(name, slowness)
    except Exception:  # whatever it is, the instance serves without
        _log.exception("slow devices are not told any more")
