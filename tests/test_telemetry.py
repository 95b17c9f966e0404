"""Metrics as data: names that their client libraries take, and numbers that the code has."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import prometheus_client
import pytest

from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.service import PrefillService
from asap_ray.actors.vitals import Vitals
from asap_ray.actors.waiter import Ttft, Waiter
from asap_ray.backends.host_comm import HostMoEComm
from asap_ray.batch import Batch, Duty, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.dashboards.promql import SLO_S
from asap_ray.kvcache.prefix import PrefixCache, PrefixCounts
from asap_ray.protocol import WorkItem
from asap_ray.scheduler.drain_rate import DrainRate
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.spec import PrefillSpec
from asap_ray.telemetry import METRICS, devices, frontend
from asap_ray.telemetry.metric import Kind, Metric
from asap_ray.totals import DeviceTotals, RankTotals

SOURCES = {
    source.__name__: source
    for source in (
        *(Batch, DeviceTotals, DrainRate, DualBatchScheduler, Duty, HostMoEComm, PrefillInstance, PrefillService),
        *(PrefillSpec, PrefixCache, PrefixCounts, RankTotals, Request, ServeConfig, Stamps, Token, Ttft, Vitals),
        *(Waiter, WorkItem),
    )
}
CLIENTS = {
    Kind.COUNTER: prometheus_client.Counter,
    Kind.GAUGE: prometheus_client.Gauge,
    Kind.HISTOGRAM: prometheus_client.Histogram,
}

ACTORS = Path(__file__).parent.parent / "actors"

every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@every_metric
def test_prometheus_has_it_under_the_name_we_say(metric: Metric) -> None:
    """What the client library exports is `exported`; Ray puts `ray_` before what it is given."""
    registry = prometheus_client.CollectorRegistry()
    name = metric.exported.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.exported
    CLIENTS[metric.kind](name, metric.help, metric.labels, registry=registry).labels(*metric.labels)

    names = {line.split("{")[0] for line in prometheus_client.generate_latest(registry).decode().splitlines()}
    expected = f"{metric.exported}_bucket" if metric.kind is Kind.HISTOGRAM else metric.exported
    assert expected in names


@every_metric
def test_ray_takes_no_colon(metric: Metric) -> None:
    """A colon makes Ray drop a metric silently, so those with one are the frontend's own."""
    assert (":" in metric.name, metric.name.startswith(("vllm:", "asap_"))) == (metric.is_vllm, True)


@every_metric
def test_a_histogram_and_only_one_has_rising_bounds(metric: Metric) -> None:
    """Equal or falling bounds would be refused where the metric is made."""
    assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
    assert all(low < high for low, high in pairwise(metric.buckets))


@every_metric
def test_its_source_is_in_the_code(metric: Metric) -> None:
    """Every Class.member that a metric says it is measured from exists."""
    named = re.findall(r"\b([A-Z]\w+)\.(\w+)", metric.measured)
    assert [f"{owner}.{member}" for owner, member in named if not hasattr(SOURCES[owner], member)] == []


def test_no_name_is_defined_twice() -> None:
    """A dict by name would hide it."""
    defined = [each for module in (frontend, devices) for each in vars(module).values() if isinstance(each, Metric)]
    assert len(METRICS) == len(defined)


def test_the_objective_is_a_bucket() -> None:
    """The share of first tokens within it is exact."""
    assert SLO_S in frontend.TTFT.buckets


def test_names_say_what_prometheus_adds() -> None:
    """A counter gets `_total`; Ray's get `ray_`."""
    exported = [metric.exported for metric in (frontend.PROMPT_TOKENS, devices.MOE_CALLS, frontend.READY)]
    assert exported == ["vllm:prompt_tokens_total", "ray_asap_moe_calls_total", "ray_asap_ready"]


def test_every_metric_is_exported() -> None:
    """Each is named where a client library gets its numbers; nobody waits for one that nothing counts."""
    source = "".join((ACTORS / f"{name}_metrics.py").read_text() for name in ("frontend", "device"))
    defined = [
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (frontend, devices)
        for name, each in vars(module).items()
        if isinstance(each, Metric)
    ]

    assert [name for name in defined if not re.search(rf"\b{re.escape(name)}\b", source)] == []
