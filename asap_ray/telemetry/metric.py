"""What a metric is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is what the code that measures it passes to its client library."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    measured: str  # where, and from which number of the code
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram

    @property
    def is_vllm(self) -> bool:
        """Whether the frontend's own `/metrics` has it, not Ray."""
        return self.name.startswith("vllm:")

    @property
    def exported(self) -> str:
        """The name in Prometheus; a histogram's series are this and `_bucket`, `_sum` or `_count`."""
        prefix = "" if self.is_vllm else "ray_"
        return f"{prefix}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"


def counter(name: str, unit: str, labels: tuple[str, ...], help: str, measured: str) -> Metric:
    """A total that only grows."""
    return Metric(name, Kind.COUNTER, unit, labels, help, measured)


def gauge(name: str, unit: str, labels: tuple[str, ...], help: str, measured: str) -> Metric:
    """A value of now."""
    return Metric(name, Kind.GAUGE, unit, labels, help, measured)
