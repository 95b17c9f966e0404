"""Where a metric goes: a registry of `prometheus_client` for `GET /metrics`, or the metrics agent of Ray's node."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import prometheus_client
from ray.util import metrics as ray_metrics

from asap_ray.telemetry.metric import Kind, Metric

_NOTHING: Final = math.ulp(0.0)
"""Ray refuses to add 0 to a counter; the smallest number there is leaves any total as it is."""


class Exporter(Protocol):
    """Labels that are the same for all its metrics are its own; callers give the others, as text."""

    def count(self, metric: Metric, amount: float, **labels: str) -> None:
        """Add to a counter. 0 shows it: `increase()` sees no growth before a series' first sample."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """One more value of a histogram."""

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """The value of a gauge from now on."""


class PrometheusExporter:
    """`Exporter` into a registry."""

    def __init__(self, registry: prometheus_client.CollectorRegistry, **constants: str) -> None:
        self._registry = registry
        self._constants = constants
        self._made: dict[str, Any] = {}

    def count(self, metric: Metric, amount: float, **labels: str) -> None:
        """See `Exporter`."""
        self._labelled(metric, labels).inc(amount)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """See `Exporter`."""
        self._labelled(metric, labels).observe(value)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """See `Exporter`."""
        self._labelled(metric, labels).set(value)

    def _labelled(self, metric: Metric, labels: dict[str, str]) -> Any:
        made = self._made.get(metric.name) or self._make(metric)
        given = self._constants | labels
        return made.labels(*[given[label] for label in metric.labels])

    def _make(self, metric: Metric) -> Any:
        arguments = (metric.name, metric.help, metric.labels)
        match metric.kind:
            case Kind.COUNTER:
                made: Any = prometheus_client.Counter(*arguments, registry=self._registry)
            case Kind.GAUGE:
                made = prometheus_client.Gauge(*arguments, registry=self._registry)
            case Kind.HISTOGRAM:
                made = prometheus_client.Histogram(*arguments, registry=self._registry, buckets=metric.buckets)
        self._made[metric.name] = made
        return made


class RayExporter:
    """`Exporter` through Ray, which puts `ray_` before every name and shows what it got some 10 seconds later."""

    def __init__(self, **constants: str) -> None:
        self._constants = constants
        self._made: dict[str, Any] = {}

    def count(self, metric: Metric, amount: float, **labels: str) -> None:
        """See `Exporter`."""
        self._of(metric).inc(amount or _NOTHING, self._constants | labels)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """See `Exporter`."""
        self._of(metric).observe(value, self._constants | labels)

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """See `Exporter`."""
        self._of(metric).set(value, self._constants | labels)

    def _of(self, metric: Metric) -> Any:
        if metric.name not in self._made:
            self._made[metric.name] = _ray_metric(metric)
        return self._made[metric.name]


def _ray_metric(metric: Metric) -> Any:
    match metric.kind:
        case Kind.COUNTER:
            return ray_metrics.Counter(metric.name, metric.help, metric.labels)
        case Kind.GAUGE:
            return ray_metrics.Gauge(metric.name, metric.help, metric.labels)
        case Kind.HISTOGRAM:
            return ray_metrics.Histogram(metric.name, metric.help, list(metric.buckets), metric.labels)


class Totals:
    """Counters from totals that others keep as plain numbers: what they grew by since the last report counts."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._reported: dict[tuple[str, ...], float] = {}

    def report(self, metric: Metric, total: float, **labels: str) -> None:
        """A total as it is now; one that fell begins anew, as its owner did."""
        key = (metric.name, *labels.values())
        before = self._reported.get(key)
        if total != before:
            self._exporter.count(metric, total - before if before and total > before else total, **labels)
            self._reported[key] = total
