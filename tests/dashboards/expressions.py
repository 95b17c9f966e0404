"""What an expression of PromQL refers to."""

from __future__ import annotations

import re

from asap_ray.telemetry import METRICS
from asap_ray.telemetry.metric import Kind, Metric

SERIES: dict[str, Metric] = {
    f"{metric.exported}{suffix}": metric
    for metric in METRICS.values()
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
}
"""Every series Prometheus has of ours."""


def names(expr: str) -> set[str]:
    """Series of ours, or what looks like one."""
    return set(re.findall(r"\b(?:ray_asap_|vllm:)[\w:]+", expr))


def metrics(expr: str) -> set[Metric]:
    """Whose series they are."""
    return {SERIES[name] for name in names(expr)}


def grouped(expr: str) -> set[str]:
    """Labels that the expression aggregates by."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expr))))


def matched(expr: str) -> set[tuple[str, str]]:
    """(series, label) of every matcher."""
    selectors = re.findall(r"([\w:]+)\{([^}]*)\}", expr)
    return {(name, label) for name, inside in selectors for label in re.findall(r"(\w+)=", inside)}


def labels(metric: Metric) -> set[str]:
    """Those of its series."""
    return {*metric.labels, *(("le",) if metric.kind is Kind.HISTOGRAM else ())}
