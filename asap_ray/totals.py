"""What devices have counted since their start; an actor answers with it, a metric is the growth of it."""

# Shapes: E experts of a MoE device, L layers, M MoE devices of the instance.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asap_ray.batch import Duty
from asap_ray.laps import Laps, State


@dataclass(slots=True)
class Spent:
    """Seconds of a compute stream, and the layers of batches that they went to."""

    seconds: float = 0.0
    num_layers: int = 0

    def add(self, seconds: float, num_layers: int) -> None:
        """Some more."""
        self.seconds += seconds
        self.num_layers += num_layers


@dataclass(frozen=True, slots=True)
class Pace:
    """What layers of batches took a device since its start, by their size: layers of one size cost devices alike."""

    by_size: dict[str, Spent] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Of all sizes."""
        return sum(spent.num_layers for spent in self.by_size.values())

    def add(self, size: str, seconds: float) -> None:
        """Count a layer; one thread alone does."""
        if size not in self.by_size:
            self.by_size[size] = Spent()
        self.by_size[size].add(seconds, 1)

    def copy(self) -> Pace:
        """As it is now; for any thread."""
        return Pace({size: replace(spent) for size, spent in dict(self.by_size).items()})

    def since(self, before: Pace) -> Pace:
        """What came after an earlier copy."""
        nothing, grown = Spent(), {}
        for size, spent in self.by_size.items():
            old = before.by_size.get(size, nothing)
            if spent.num_layers > old.num_layers:
                grown[size] = Spent(spent.seconds - old.seconds, spent.num_layers - old.num_layers)
        return Pace(grown)


def size_of(num_rows: int, mean_context: int) -> str:
    """The size of a pass: its rows, and how many tokens each attends to; alike are those within a factor of two."""
    return f"{num_rows.bit_length()}.{mean_context.bit_length()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """Of rank j of an attention group."""

    duty: Duty
    dispatch_s: float  # back-pressure included
    combine_s: float
    idle_s: float
    backpressure_s_M: tuple[float, ...]  # a wait for several devices is divided among them


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """Of the ranks of an attention group, in their order."""

    ranks: tuple[RankTotals, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotals:
    """Seconds of one stream of a MoE device (3.4.1)."""

    work_s: float
    starved_s: float  # waiting for input
    blocked_s: float  # waiting for room in its output


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTotals:
    """Of a MoE device."""

    duty: Duty
    receive: StreamTotals
    compute: StreamTotals
    send: StreamTotals
    num_tokens: int  # received, once a layer however many of the device's experts they chose
    num_dropped: int  # messages whose header contradicts the layout
    num_expert_calls: int  # experts that had rows, summed over calls
    rows_E: tuple[int, ...]
    steps_L: tuple[int, ...]  # calls by the step from the layer before, modulo L


def stream_totals(laps: Laps[Any], work: State) -> StreamTotals:
    """Of a stream of a MoE device whose work is `work`."""
    totals_s = laps.totals_s()
    return StreamTotals(work_s=totals_s[work], starved_s=totals_s[State.STARVED], blocked_s=totals_s[State.BLOCKED])


def entropy_bits(counts: Sequence[int]) -> float:
    """Of what was counted: 0 if it was always the same."""
    total = sum(counts)
    return sum(count / total * math.log2(total / count) for count in counts if count)
