"""Prometheus recording and alert rules: the same quantities as on the panels, and when somebody should look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from asap_ray.dashboards.promql import DEVICE, RANK, RULE, SLO_S
from asap_ray.telemetry import devices, frontend

WITHIN_SLO: Final = 0.9
"""Share of first tokens within the objective below which somebody should look."""

ERROR_SHARE: Final = 0.01
BACKPRESSURE_SHARE: Final = 0.3
SLOW: Final = 5.0
IMBALANCE: Final = 1.5
STARTS_AN_HOUR: Final = 3

_LATELY: Final = replace(RULE, window="15m")


@dataclass(frozen=True, slots=True)
class Recording:
    """A quantity under a name of its own: `LEVEL:QUANTITY`, the level being its labels."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition that held for `wait`. `docs/monitoring.md` says what to do then."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str


def recordings() -> tuple[Recording, ...]:
    """What is looked at over weeks, or too slow to compute on every refresh."""
    return (
        *(
            Recording(f"model:asap_ttft_seconds:p{100 * share:g}", RULE.quantile(share, frontend.TTFT, "model_name"))
            for share in (0.5, 0.9, 0.99)
        ),
        Recording("model:asap_ttft_within_slo:ratio", RULE.within_slo()),
        Recording("model:asap_prefix_hits:ratio", RULE.prefix_hit_rate()),
        Recording("rank:asap_attention_idle:ratio", RULE.attention_idle()),
        Recording("rank:asap_backpressure:ratio", RULE.rate(devices.BACKPRESSURE, RANK)),
        Recording("device:asap_moe_duty:ratio", RULE.moe_duty()),
        Recording("app:asap_dp_imbalance:ratio", RULE.imbalance(devices.ATTENTION_ROWS, "app", "app, dp_group")),
        Recording("app:asap_moe_imbalance:ratio", RULE.imbalance(devices.MOE_ROWS, "app", DEVICE)),
        Recording(
            "device:asap_expert_imbalance:ratio", RULE.imbalance(devices.EXPERT_ROWS, DEVICE, f"{DEVICE}, expert")
        ),
    )


def alerts() -> tuple[Alert, ...]:
    """Whether an instance serves, whether it is in time, and which part of it holds up the rest."""
    return (*_availability(), *_service_level(), *_bottlenecks())


def _availability() -> Iterator[Alert]:
    ready, up = RULE.series(frontend.READY), RULE.series(frontend.DEVICE_UP)
    losses = _LATELY.growth(frontend.DEVICE_LOSSES, "app, device")
    starts = replace(RULE, window="1h").starts()
    dropped = _LATELY.growth(devices.MESSAGES_DROPPED, DEVICE)
    yield Alert("AsapNotReady", f"min by (app) ({ready}) == 0", "1m", "critical", "{{ $labels.app }} is not ready")
    yield Alert("AsapSilent", f"absent({ready})", "2m", "critical", "no instance reports")
    yield Alert(
        "AsapDeviceDown", f"min by (app, device) ({up}) == 0", "30s", "critical", "{{ $labels.device }} does not serve"
    )
    yield Alert("AsapDeviceLost", f"{losses} > 0", "0s", "warning", "{{ $labels.device }} was lost")
    yield Alert(
        "AsapRestarts",
        f"{starts} > {STARTS_AN_HOUR}",
        "0s",
        "critical",
        '{{ $labels.app }} started again {{ $value | printf "%.0f" }} times in an hour',
    )
    yield Alert(
        "AsapMessagesDropped",
        f"{dropped} > 0",
        "0s",
        "critical",
        "MoE device {{ $labels.moe_device }} dropped messages that contradict the layout",
    )


def _service_level() -> Iterator[Alert]:
    errors = f'sum by (app) (rate({frontend.REQUEST_ERRORS.exported}{{status=~"5.."}}[{RULE.window}]))'
    requests = RULE.rate(frontend.TTFT_PART, "app", "_count", part="queue")
    refused = RULE.rate(frontend.REQUEST_ERRORS, "app", status="429")
    yield Alert(
        "AsapTtftLate",
        f"{RULE.within_slo()} < {WITHIN_SLO:g}",
        "5m",
        "warning",
        f"{{{{ $value | humanizePercentage }}}} of first tokens come within {SLO_S:g} s",
    )
    yield Alert(
        "AsapErrors",
        f"{errors} / ({errors} + ({requests} or 0 * {errors})) > {ERROR_SHARE:g}",
        "5m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests of {{ $labels.app }} fail",
    )
    yield Alert("AsapOverloaded", f"{refused} > 0", "5m", "warning", "{{ $labels.app }} refuses requests")


def _bottlenecks() -> Iterator[Alert]:
    waits = f"sum by (app) ({RULE.series(frontend.QUEUED_TOKENS)}) > 0"
    idle = f"max by (app) ({RULE.attention_idle()}) > 0.5"
    yield Alert(
        "AsapIdleWhileQueued",
        f"{idle} and on (app) {waits}",
        "10m",
        "warning",
        "a rank of {{ $labels.app }} is idle for {{ $value | humanizePercentage }} of its time while prompts wait",
    )
    yield Alert(
        "AsapBackpressure",
        f"{RULE.rate(devices.BACKPRESSURE, RANK)} > {BACKPRESSURE_SHARE:g}",
        "10m",
        "warning",
        "group {{ $labels.dp_group }} waits {{ $value | humanizePercentage }} of its time for room in MoE devices",
    )
    yield Alert(
        "AsapDeviceSlow",
        f"max by (app, device) ({RULE.series(frontend.DEVICE_SLOWNESS)}) > {SLOW:g}",
        "1m",
        "warning",
        '{{ $labels.device }} takes {{ $value | printf "%.0f" }} times as long as the others of its kind',
    )
    yield Alert(
        "AsapMoeImbalance",
        f"{RULE.imbalance(devices.MOE_ROWS, 'app', DEVICE)} > {IMBALANCE:g}",
        "15m",
        "warning",
        'the fullest MoE device of {{ $labels.app }} has {{ $value | printf "%.1f" }} times the mean',
    )


def to_yaml() -> dict[str, Any]:
    """A rule file of Prometheus."""
    recorded = [{"record": rule.name, "expr": rule.expr} for rule in recordings()]
    alerted = [
        {
            "alert": rule.name,
            "expr": rule.expr,
            "for": rule.wait,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "runbook": f"docs/monitoring.md#{rule.name.lower()}"},
        }
        for rule in alerts()
    ]
    return {"groups": [{"name": "asap-recordings", "rules": recorded}, {"name": "asap-alerts", "rules": alerted}]}
