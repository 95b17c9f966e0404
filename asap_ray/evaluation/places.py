"""A placement of experts from how many rows each had: hot ones in several places, devices alike (ADR 0010)."""

# Shapes: X experts, L layers.

from __future__ import annotations

import heapq
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from asap_ray.errors import ConfigError
from asap_ray.placement import Placement, split

_SAMPLE: Final = re.compile(r'^(?:ray_)?asap_expert_rows(?:_total)?\{[^}]*\bexpert="(\d+)"[^}]*\} (\S+)', re.MULTILINE)


def read_counts(path: Path, num_experts: int) -> list[float]:
    """Rows by expert: JSON by expert, or by layer and expert, or what a metrics page says of `asap_expert_rows`.

    A page says nothing of an expert that was never asked: it had none.

    Raises:
        ConfigError: not such a file, or one of more experts.
    """
    try:
        text = path.read_text()
        counts_X = _of_page(text, num_experts) or np.asarray(json.loads(text), dtype=np.float64)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"expert counts {str(path)!r} cannot be read: {error}") from None
    except LookupError as error:
        raise ConfigError(
            f"expert counts {str(path)!r} name expert {error.args[0]}; the model has {num_experts}"
        ) from None
    counts_X = np.asarray(counts_X)
    if counts_X.ndim == 2:
        counts_X = counts_X.sum(axis=0)
    if counts_X.ndim != 1 or not counts_X.size or not np.isfinite(counts_X).all() or counts_X.min() < 0:
        raise ConfigError(f"expert counts {str(path)!r} must be numbers >= 0, by expert or by layer and expert")
    if len(counts_X) > num_experts:
        raise ConfigError(f"expert counts {str(path)!r} are of {len(counts_X)} experts; the model has {num_experts}")
    counts: list[float] = counts_X.tolist()
    return counts + [0.0] * (num_experts - len(counts))


def _of_page(text: str, num_experts: int) -> list[float]:
    """Samples of all devices, added by expert; experts that were never asked are 0. Empty if it is no such page."""
    counts: defaultdict[int, float] = defaultdict(float)
    for expert, rows in _SAMPLE.findall(text):
        if int(expert) >= num_experts:
            raise LookupError(int(expert))
        counts[int(expert)] += float(rows)
    return [counts[expert] for expert in range(num_experts)] if counts else []


def num_places_of(counts_X: Sequence[float], moe_devices: int, redundant: int) -> list[int]:
    """How many places each expert gets: one, and one more, so often, where a place has the most rows."""
    num_places = [1] * len(counts_X)
    fullest = [(-rows, expert) for expert, rows in enumerate(counts_X)] if moe_devices > 1 else []
    heapq.heapify(fullest)
    for _ in range(redundant):
        _, expert = heapq.heappop(fullest)
        num_places[expert] += 1
        if num_places[expert] < moe_devices:
            heapq.heappush(fullest, (-counts_X[expert] / num_places[expert], expert))
    return num_places


def place(counts_X: Sequence[float], moe_devices: int, redundant: int) -> Placement:
    """Each place, those with the most rows first, on the device with the fewest that has room for it.

    Raises:
        ConfigError: there are fewer experts than devices, or more places than all experts on all devices.
    """
    num_experts = len(counts_X)
    if not 1 <= moe_devices <= num_experts:
        raise ConfigError(f"moe_devices={moe_devices} must lie in 1..{num_experts}, the number of experts")
    if not 0 <= redundant <= num_experts * (moe_devices - 1):
        raise ConfigError(
            f"redundant={redundant} must lie in 0..{num_experts * (moe_devices - 1)}: with more, a device of "
            f"{moe_devices} would have one of the {num_experts} experts twice"
        )
    num_places = num_places_of(counts_X, moe_devices, redundant)
    rows = [count / places for count, places in zip(counts_X, num_places, strict=True)]
    filling = _Filling(rows, [len(places) for places in split(num_experts + redundant, moe_devices)])
    for expert in sorted(range(num_experts), key=lambda x: (-rows[x], x)):
        for _ in range(num_places[expert]):
            filling.put(expert)
    return Placement(experts=tuple(tuple(sorted(experts)) for experts in filling.devices))


class _Filling:
    """Devices that are being filled."""

    def __init__(self, rows: Sequence[float], sizes: Sequence[int]) -> None:
        self.devices: list[set[int]] = [set() for _ in sizes]
        self._rows = rows  # of a place of each expert
        self._sizes = sizes

    def put(self, expert: int) -> None:
        """One more place of an expert."""
        with_room = [e for e, experts in enumerate(self.devices) if len(experts) < self._sizes[e]]
        without = [e for e in with_room if expert not in self.devices[e]]
        target = min(without or with_room, key=self._load)
        self.devices[target].add(expert if without else self._exchange(expert, target))

    def _exchange(self, expert: int, target: int) -> int:
        """All room is where the expert is already: it goes where it is not, and what was there is for the target."""
        other = min((e for e, experts in enumerate(self.devices) if expert not in experts), key=self._load)
        moved = min(self.devices[other] - self.devices[target], key=lambda x: (self._rows[x], x))
        self.devices[other] ^= {moved, expert}
        return moved

    def _load(self, moe_device: int) -> tuple[float, int]:
        return sum(self._rows[x] for x in self.devices[moe_device]), moe_device
