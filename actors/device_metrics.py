"""What attention ranks and MoE devices export: the growth of their totals, whenever a frontend asks for their state."""

# Shapes: E experts of a MoE device, L layers, M MoE devices.

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import sub

from asap_ray.actors.exporters import Exporter, Totals
from asap_ray.telemetry import devices
from asap_ray.totals import DeviceTotals, RankTotals, entropy_bits


class RankMetrics:
    """Of one rank; the exporter knows which. `report` is for any thread."""

    def __init__(self, exporter: Exporter, count: Callable[[], RankTotals]) -> None:
        self._totals = Totals(exporter)
        self._count = count
        self._reporting = threading.Lock()  # an older count after a newer one would look like a new rank

    def report(self) -> None:
        """What it has counted up to now."""
        with self._reporting:
            counted, report = self._count(), self._totals.report
            report(devices.ATTENTION_SECONDS, counted.duty.compute_s, phase="compute")
            report(devices.ATTENTION_SECONDS, counted.dispatch_s, phase="dispatch")
            report(devices.ATTENTION_SECONDS, counted.combine_s, phase="combine")
            for moe_device, full_s in enumerate(counted.backpressure_s_M):
                report(devices.BACKPRESSURE, full_s, moe_device=str(moe_device))
            report(devices.ATTENTION_ITEMS, counted.duty.num_items)
            report(devices.ATTENTION_ROWS, counted.duty.num_rows)


class DeviceMetrics:
    """Of one MoE device, whose experts are `experts`; the exporter knows which. `report` is for any thread."""

    def __init__(self, exporter: Exporter, count: Callable[[], DeviceTotals], experts: Sequence[int]) -> None:
        self._exporter = exporter
        self._totals = Totals(exporter)
        self._count = count
        self._experts = experts
        self._steps_L: tuple[int, ...] = ()
        self._reporting = threading.Lock()

    def report(self) -> None:
        """What it has counted up to now."""
        with self._reporting:
            counted, report = self._count(), self._totals.report
            for stream in ("receive", "compute", "send"):
                spent = getattr(counted, stream)
                report(devices.MOE_SECONDS, spent.work_s, stream=stream, state="work")
                report(devices.MOE_SECONDS, spent.starved_s, stream=stream, state="starved")
                report(devices.MOE_SECONDS, spent.blocked_s, stream=stream, state="blocked")
            for expert, num_rows in zip(self._experts, counted.rows_E, strict=True):
                report(devices.EXPERT_ROWS, num_rows, expert=str(expert))
            report(devices.EXPERT_CALLS, counted.num_expert_calls)
            report(devices.MOE_CALLS, counted.duty.num_items)
            report(devices.MOE_ROWS, counted.duty.num_rows)
            report(devices.MOE_TOKENS, counted.num_tokens)
            report(devices.MESSAGES_DROPPED, counted.num_dropped)
            self._exporter.set(devices.LAYER_ENTROPY, self._entropy_bits(counted.steps_L))

    def _entropy_bits(self, steps_L: tuple[int, ...]) -> float:
        """Of the steps since the last report."""
        before_L = self._steps_L or (0,) * len(steps_L)
        self._steps_L = steps_L
        return entropy_bits(list(map(sub, steps_L, before_L)))
