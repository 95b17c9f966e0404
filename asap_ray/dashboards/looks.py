"""What an instance says of itself over HTTP, at two times: totals at one, rates and quantiles between them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from asap_ray.errors import ConfigError, Unavailable
from asap_ray.telemetry import frontend
from asap_ray.telemetry.metric import Metric

_TIMEOUT_S: Final = 15.0
"""The frontend waits 10 s for a device that is slow to say what it did."""


@dataclass(frozen=True, slots=True)
class Look:
    """One answer of `/metrics`, `/ready` and `/duty`."""

    at_s: float = -math.inf
    model: str = ""
    missing: str = ""  # why it is not ready; empty if it is
    samples: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by series name and bucket, or nothing
    duty: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # totals of each device, by name
    engine: str = ""  # which replica answered

    def total(self, metric: Metric, suffix: str = "") -> float:
        """The sum over all labels; 0 if there is no such series."""
        return self.samples.get((f"{metric.exported}{suffix}", ""), 0.0)

    def has(self, metric: Metric) -> bool:
        """Whether the server exports it."""
        return (metric.exported, "") in self.samples

    def buckets(self, metric: Metric) -> dict[float, float]:
        """Observations of a histogram up to each bound."""
        name = f"{metric.exported}_bucket"
        return {float(le): value for (series, le), value in self.samples.items() if series == name}


NEVER: Final = Look()
"""Before the instance began: what has happened since is all of it."""


@dataclass(frozen=True, slots=True)
class Span:
    """From one look to a later one."""

    before: Look
    now: Look

    @property
    def seconds(self) -> float:
        """How long."""
        return self.now.at_s - self.before.at_s

    def growth(self, metric: Metric, suffix: str = "") -> float:
        """Of a counter; all of it if the server began anew meanwhile."""
        total = self.now.total(metric, suffix)
        grown = total - self.before.total(metric, suffix)
        return grown if grown >= 0 else total

    def rate(self, metric: Metric) -> float:
        """Growth a second."""
        return self.growth(metric) / self.seconds

    def mean(self, metric: Metric) -> float | None:
        """Of a histogram; None if nothing was observed."""
        count = self.growth(metric, "_count")
        return self.growth(metric, "_sum") / count if count else None

    def quantile(self, share: float, metric: Metric) -> float | None:
        """As Prometheus estimates it: evenly within a bucket; above the last bound, that bound."""
        before, now = self.before.buckets(metric), self.now.buckets(metric)
        has_restarted = any(now[bound] < before.get(bound, 0.0) for bound in now)
        grown = {bound: now[bound] - (0.0 if has_restarted else before.get(bound, 0.0)) for bound in sorted(now)}
        return _quantile(share, grown)

    def device_rate(self, device: str, total: str) -> float | None:
        """Growth a second of a total of `/duty`; None unless both looks have it."""
        before, now = self.before.duty.get(device), self.now.duty.get(device)
        if not before or not now or now[total] < before[total]:
            return None
        return (now[total] - before[total]) / self.seconds


def _quantile(share: float, cumulative: Mapping[float, float]) -> float | None:
    if not cumulative or not (num := max(cumulative.values())):
        return None
    rank = share * num
    for (low, below), (high, up_to) in pairwise([(0.0, 0.0), *cumulative.items()]):
        if up_to >= rank and up_to > below:
            return low if math.isinf(high) else low + (high - low) * (rank - below) / (up_to - below)
    return None


def look(client: httpx.Client) -> Look:
    """Ask a server.

    Raises:
        Unavailable: nobody answers there.
        ConfigError: what answers has no metrics of this kind.
    """
    metrics = _get(client, "/metrics")
    samples, labels = samples_of(metrics.text if metrics.is_success else "")
    if (frontend.RUNNING.exported, "") not in samples:
        raise ConfigError(f"{metrics.url} (HTTP {metrics.status_code}) has no {frontend.RUNNING.exported}")
    return Look(
        at_s=time.monotonic(),
        model=labels.get("model_name", ""),
        missing=_missing(_get(client, "/ready")),
        samples=samples,
        duty=_duty(_get(client, "/duty")),
        engine=labels.get("engine", ""),
    )


def samples_of(exposition: str) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """The `samples` of a look and their last labels, from Prometheus' text format; nothing if it is no such text."""
    samples: dict[tuple[str, str], float] = {}
    last: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(exposition):
            for name, labels, value, *_ in family.samples:
                key = name, labels.get("le", "")
                samples[key] = samples.get(key, 0.0) + value
                last |= labels
    except ValueError:
        return {}, {}
    return samples, last


def connect(url: str) -> httpx.Client:
    """A client of a server; proxies of the environment are ignored.

    Raises:
        ConfigError: this is no address.
    """
    root = url.rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(root)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"--url {url!r} is no server; write it as http://127.0.0.1:8000")
    return httpx.Client(base_url=root, timeout=_TIMEOUT_S, trust_env=False)


def _get(client: httpx.Client, path: str) -> httpx.Response:
    try:
        return client.get(path)
    except httpx.HTTPError as error:
        raise Unavailable(f"no answer from {client.base_url}: {error or type(error).__name__}") from None


def _duty(reply: httpx.Response) -> dict[str, dict[str, float]]:
    if reply.status_code == httpx.codes.NOT_FOUND:  # vLLM has no such route
        return {}
    try:
        return {str(name): dict(totals) for name, totals in reply.json().items()}
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{reply.url} (HTTP {reply.status_code}) does not list devices") from None


def _missing(ready: httpx.Response) -> str:
    if ready.is_success or ready.status_code == httpx.codes.NOT_FOUND:
        return ""
    try:
        body: Any = ready.json()
        return str(body["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {ready.status_code}"
