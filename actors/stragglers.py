"""Which device takes longer than the others of its kind: it holds up everybody, and no deadline ever names it."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from asap_ray.batch import Duty

LOOK_S: Final = 10.0
"""Between two looks at what devices have computed."""

LEAST_ITEMS: Final = 20
"""Fewer layers of batches between two looks say nothing."""

SLOW: Final = 5.0
"""So many times the others is told in the log: skew of experts and of prompt lengths stays below it as a rule."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pace:
    """What a device did between two looks."""

    kind: str  # attention or moe
    unit_s: float  # seconds of a MoE device's layer of a batch, of a group's token in a layer


class Stragglers:
    """Compares devices, whose names end in their kind and number (`asap:moe:1`)."""

    def __init__(self) -> None:
        self._before: dict[str, Duty] = {}
        self._slow: set[str] = set()

    def look(self, duties: Mapping[str, Duty]) -> dict[str, float]:
        """How many times as long as the median of the others each device took since the last look.

        Layers of batches come to all MoE devices alike, so of them a layer is compared, whatever its rows: one that has
        the hot experts holds up the others too. Groups run batches of different sizes: of them a token is. Devices that
        did little, or have no others of their kind, are left out. Says once in the log that one is slow.
        """
        paces = {name: pace for name, duty in duties.items() if (pace := self._pace(name, duty))}
        self._before |= {name: replace(duty) for name, duty in duties.items()}
        slowness = {}
        for name, pace in paces.items():
            others_s = [each.unit_s for other, each in paces.items() if other != name and each.kind == pace.kind]
            if others_s and (usual_s := statistics.median(others_s)):
                slowness[name] = pace.unit_s / usual_s
                self._tell(name, slowness[name], pace.unit_s, usual_s)
        return slowness

    def _pace(self, name: str, duty: Duty) -> _Pace | None:
        before = self._before.get(name, Duty.zero())
        num_items = duty.num_items - before.num_items  # negative: a successor began anew
        kind = name.split(":")[-2]
        num_units = num_items if kind == "moe" else duty.num_rows - before.num_rows
        if num_items < LEAST_ITEMS or num_units < 1:
            return None
        return _Pace(kind, (duty.compute_s - before.compute_s) / num_units)

    def _tell(self, name: str, slowness: float, unit_s: float, usual_s: float) -> None:
        if slowness >= SLOW and name not in self._slow:
            self._slow.add(name)
            _log.warning(
                "%s is slow: %.1f times the others of its kind (%.3g s, they %.3g s)", name, slowness, unit_s, usual_s
            )
        elif slowness < SLOW / 2 and name in self._slow:
            self._slow.remove(name)
            _log.warning("%s is as fast as the others again", name)


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
