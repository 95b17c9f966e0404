"""The four dashboards: what an operator sees first, and where to look then."""

from __future__ import annotations

from typing import Final

from asap_ray.dashboards.grafana import Board, Panel, Row, Target, View, plot
from asap_ray.dashboards.panels_devices import attention, experts
from asap_ray.dashboards.panels_requests import batches, latency, prompts, quantiles
from asap_ray.dashboards.promql import DEVICE, PANEL, SLO_S
from asap_ray.telemetry import devices, frontend

OVERVIEW_UID: Final = "asap-overview"
"""Ray's Metrics tab shows this one (dashboards/ray_env.sh)."""

UNSHOWN: Final = {
    frontend.CACHE_CONFIG.name: "a constant that routers read; nothing to plot",
}
"""Metrics on no dashboard, and why."""


def boards() -> tuple[Board, ...]:
    """All of them; their uids are the names of their files."""
    return (
        Board(
            OVERVIEW_UID,
            "ASAP overview",
            "Does it serve, how fast, how full is it, and which side waits.",
            (_now(), _load(), _pace()),
        ),
        Board(
            "asap-devices",
            "ASAP DP groups and MoE devices",
            "Where the time of every attention rank and MoE device goes, and who holds up whom.",
            (attention(), experts()),
        ),
        Board(
            "asap-requests",
            "ASAP requests and SLO",
            "Times to first token and their parts, prompts, batches.",
            (latency(), prompts(), batches()),
        ),
        Board(
            "asap-failures",
            "ASAP failures and recoveries",
            "What was lost, what it cost, how long until it served again.",
            (_health(), _failures()),
        ),
    )


def _now() -> Row:
    lost = f"sum(1 - {PANEL.series(frontend.DEVICE_UP)})"
    ttft = PANEL.quantile(0.99, frontend.TTFT, "model_name")
    ready, waiting, running = (
        f"sum({PANEL.series(metric)})" for metric in (frontend.READY, frontend.WAITING, frontend.RUNNING)
    )
    return Row(
        "Now",
        (
            _number("Instances ready", "none", ready, "Those that answer 200 on GET /ready."),
            _number("Devices lost", "none", lost, "Groups and MoE devices that do not serve."),
            _number("TTFT p99", "s", ttft, frontend.TTFT.help),
            _number("Within objective", "percentunit", PANEL.within_slo(), f"First tokens within {SLO_S:g} s."),
            _number("Waiting", "none", waiting, frontend.WAITING.help),
            _number("Running", "none", running, frontend.RUNNING.help),
        ),
    )


def _load() -> Row:
    tokens = PANEL.rate(frontend.PROMPT_TOKENS, "model_name")
    queued = f"sum by (app) ({PANEL.series(frontend.QUEUED_TOKENS)})"
    drain = f"max by (app) ({PANEL.series(frontend.QUEUE_DRAIN)})"
    return Row(
        "Load",
        (
            quantiles("Time to first token", frontend.TTFT, "model_name", width=12),
            plot("Prompt tokens a second", "short", tokens, "{{model_name}}", frontend.PROMPT_TOKENS.help),
            plot("Queued tokens", "short", queued, "{{app}}", frontend.QUEUED_TOKENS.help),
            plot("Time to drain the queue", "s", drain, "{{app}}", frontend.QUEUE_DRAIN.help),
        ),
    )


def _pace() -> Row:
    computing = PANEL.rate(devices.ATTENTION_SECONDS, "app, dp_group", phase="compute")
    cache = (
        Target(f"max by (model_name) ({PANEL.series(frontend.KV_CACHE_USAGE)})", "blocks in use"),
        Target(PANEL.prefix_hit_rate(), "prefix hits"),
    )
    return Row(
        "Devices",
        (
            plot(
                "Attention computes",
                "percentunit",
                computing,
                "group {{dp_group}}",
                "Ranks of each DP group that compute at a time; T of them where nothing waits.",
            ),
            plot(
                "Experts compute",
                "percentunit",
                PANEL.moe_duty(),
                "device {{moe_device}}",
                "Duty cycle of each MoE device's compute stream.",
            ),
            _errors(),
            Panel("KV cache", "percentunit", cache, "Blocks of the KV pools in use, and prompt tokens found there."),
        ),
    )


def _health() -> Row:
    ready = f"min by (app) ({PANEL.series(frontend.READY)})"
    up = f"min by (device) ({PANEL.series(frontend.DEVICE_UP)})"
    return Row(
        "Health",
        (
            plot("Instances", "none", ready, "{{app}}", frontend.READY.help, View.STATES, width=24),
            plot("Devices", "none", up, "{{device}}", frontend.DEVICE_UP.help, View.STATES, width=24),
        ),
    )


def _failures() -> Row:
    losses = PANEL.growth(frontend.DEVICE_LOSSES, "device")
    failed = PANEL.growth(frontend.GROUP_FAILURES, "app, dp_group")
    dropped = PANEL.growth(devices.MESSAGES_DROPPED, DEVICE)
    slowness = f"max by (device) ({PANEL.series(frontend.DEVICE_SLOWNESS)})"
    start_s = f"max by (app, how) ({PANEL.series(frontend.START_TIME)})"
    return Row(
        "Failures and recoveries",
        (
            plot("Losses", "none", losses, "{{device}}", frontend.DEVICE_LOSSES.help),
            plot("Slowness", "none", slowness, "{{device}}", frontend.DEVICE_SLOWNESS.help),
            plot("Batches failed", "none", failed, "group {{dp_group}}", frontend.GROUP_FAILURES.help),
            plot(
                "Starts",
                "none",
                PANEL.starts(),
                "{{app}}",
                "All but the first: frontends replaced.",
            ),
            plot("Time to start", "s", start_s, "{{app}} {{how}}", frontend.START_TIME.help),
            _errors(),
            plot("Messages dropped", "none", dropped, "device {{moe_device}}", devices.MESSAGES_DROPPED.help),
        ),
    )


def _number(title: str, unit: str, expr: str, description: str) -> Panel:
    return plot(title, unit, expr, title, description, View.NUMBER, width=4)


def _errors() -> Panel:
    expr = PANEL.rate(frontend.REQUEST_ERRORS, "app, status")
    return plot("Errors a second", "reqps", expr, "HTTP {{status}}", frontend.REQUEST_ERRORS.help)
