"""Where the time of attention ranks and MoE devices goes."""

from __future__ import annotations

from typing import Final

from asap_ray.dashboards.grafana import Panel, Row, plot
from asap_ray.dashboards.promql import DEVICE, PANEL, RANK
from asap_ray.telemetry import devices, frontend
from asap_ray.telemetry.metric import Metric

_RANK: Final = "group {{dp_group}} rank {{tp_rank}}"
_DEVICE: Final = "device {{moe_device}}"


def attention() -> Row:
    """DP groups: who computes, who waits for whom, who has nothing to do."""
    computing, waiting = (PANEL.rate(devices.ATTENTION_SECONDS, RANK, phase=phase) for phase in ("compute", "combine"))
    return Row(
        "DP groups",
        (
            _share("Computing", computing, "Attention kernels."),
            _share("Waiting for experts", waiting, "What the group's second batch could not hide (3.3.2)."),
            _share("Writing rows", PANEL.attention_writing(), "Dispatch without its back-pressure."),
            _share("Back-pressure", PANEL.rate(devices.BACKPRESSURE, RANK), devices.BACKPRESSURE.help),
            _share("Idle", PANEL.attention_idle(), "No batch in either slot."),
            _slots(),
            _full_devices(),
            _imbalance(
                "Imbalance of DP groups",
                PANEL.imbalance(devices.ATTENTION_ROWS, "app", "app, dp_group"),
                "{{app}}",
                "Tokens of the busiest group over the mean (SGLang: dp_attention_token_imbalance_ratio).",
            ),
            _rate("Layers a second", devices.ATTENTION_ITEMS, RANK, _RANK),
            _rate("Tokens a second, once a layer", devices.ATTENTION_ROWS, RANK, _RANK),
        ),
    )


def experts() -> Row:
    """MoE devices: streams, sizes of calls, imbalance."""
    order = f"max by ({DEVICE}) ({PANEL.series(devices.LAYER_ENTROPY)})"
    hottest = f"topk(10, {PANEL.rate(devices.EXPERT_ROWS, 'app, expert')})"
    fullest_device = PANEL.imbalance(devices.MOE_ROWS, "app", DEVICE)
    fullest_expert = PANEL.imbalance(devices.EXPERT_ROWS, DEVICE, f"{DEVICE}, expert")
    return Row(
        "MoE devices",
        (
            *map(_stream, ("receive", "compute", "send")),
            _ratio("Tokens a call", devices.MOE_TOKENS, devices.MOE_CALLS, "Of one layer of one batch."),
            _ratio("Rows a call", devices.MOE_ROWS, devices.MOE_CALLS, "Pairs of a token and an expert."),
            _ratio("Rows an expert", devices.EXPERT_ROWS, devices.EXPERT_CALLS, "In a call, of experts that have any."),
            _imbalance("Imbalance of MoE devices", fullest_device, "{{app}}", "Rows of the fullest one over the mean."),
            _imbalance("Imbalance of experts", fullest_expert, _DEVICE, "Of a device: the fullest over the mean."),
            plot("Hottest experts", "short", hottest, "expert {{expert}}", "Rows a second."),
            plot("Layer order", "none", order, _DEVICE, devices.LAYER_ENTROPY.help),
            _rate("Calls a second", devices.MOE_CALLS, DEVICE, _DEVICE),
        ),
    )


def _slots() -> Panel:
    expr = PANEL.rate(frontend.SLOT_SECONDS, "app, dp_group, occupied")
    legend = "group {{dp_group}}: {{occupied}}"
    return plot("Slots in use", "percentunit", expr, legend, frontend.SLOT_SECONDS.help, width=8)


def _full_devices() -> Panel:
    expr = PANEL.rate(devices.BACKPRESSURE, DEVICE)
    return plot("Ranks that wait for room", "short", expr, _DEVICE, "At a time, by the device that has none.")


def _stream(stream: str) -> Panel:
    expr = PANEL.rate(devices.MOE_SECONDS, f"{DEVICE}, state", stream=stream)
    legend = f"{_DEVICE}: {{{{state}}}}"
    return plot(f"Stream: {stream}", "percentunit", expr, legend, devices.MOE_SECONDS.help, width=8)


def _share(title: str, expr: str, description: str) -> Panel:
    return plot(title, "percentunit", expr, _RANK, f"Share of a rank's time. {description}", width=8)


def _rate(title: str, metric: Metric, by: str, legend: str) -> Panel:
    return plot(title, "short", PANEL.rate(metric, by), legend, metric.help)


def _ratio(title: str, above: Metric, below: Metric, description: str) -> Panel:
    return plot(title, "short", PANEL.ratio(above, below, DEVICE), _DEVICE, description, width=8)


def _imbalance(title: str, expr: str, legend: str, description: str) -> Panel:
    return plot(title, "none", expr, legend, f"{description} 1 is perfect balance.")
