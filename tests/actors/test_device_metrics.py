"""What devices export of their totals; no Ray, no device."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from asap_ray.actors.device_metrics import DeviceMetrics, RankMetrics
from asap_ray.actors.exporters import PrometheusExporter
from asap_ray.batch import Duty
from asap_ray.totals import DeviceTotals, RankTotals, StreamTotals

IDLE = StreamTotals(work_s=0.0, starved_s=0.0, blocked_s=0.0)
NOTHING = DeviceTotals(
    duty=Duty.zero(),
    receive=IDLE,
    compute=IDLE,
    send=IDLE,
    num_tokens=0,
    num_dropped=0,
    num_expert_calls=0,
    rows_E=(0, 0),
    steps_L=(0, 0, 0, 0),
)
SOMETHING = DeviceTotals(
    duty=Duty(2.5, 4, 40),
    receive=StreamTotals(work_s=0.5, starved_s=3.0, blocked_s=0.25),
    compute=StreamTotals(work_s=2.5, starved_s=1.0, blocked_s=0.125),
    send=StreamTotals(work_s=0.75, starved_s=2.0, blocked_s=0.0),
    num_tokens=30,
    num_dropped=1,
    num_expert_calls=6,
    rows_E=(10, 30),
    steps_L=(2, 2, 0, 0),
)


@pytest.fixture
def registry() -> CollectorRegistry:
    """In place of Ray."""
    return CollectorRegistry()


def device(registry: CollectorRegistry, *counted: DeviceTotals) -> None:
    """MoE device 1, whose experts are 8 and 9, reports these totals one after the other."""
    answers = iter(counted)
    metrics = DeviceMetrics(PrometheusExporter(registry, app="a", moe_device="1"), lambda: next(answers), range(8, 10))
    for _ in counted:
        metrics.report()


def value(registry: CollectorRegistry, name: str, **labels: str) -> Any:
    """Of one series."""
    return registry.get_sample_value(name, {"app": "a", **labels})


def test_a_device_exports_its_totals(registry: CollectorRegistry) -> None:
    """Calls, rows, tokens and messages, under the number of the device."""
    device(registry, NOTHING, SOMETHING)

    names = ("calls", "rows", "tokens")
    counted = [value(registry, f"asap_moe_{name}_total", moe_device="1") for name in names]
    assert counted == [4, 40, 30]
    assert value(registry, "asap_messages_dropped_total", moe_device="1") == 1
    assert value(registry, "asap_expert_calls_total", moe_device="1") == 6


def test_every_stream_has_three_states(registry: CollectorRegistry) -> None:
    """Work, starved, blocked; what is 0 is there too."""
    device(registry, SOMETHING)

    seconds = [
        [
            value(registry, "asap_moe_seconds_total", moe_device="1", stream=stream, state=state)
            for state in ("work", "starved", "blocked")
        ]
        for stream in ("receive", "compute", "send")
    ]
    assert seconds == [[0.5, 3.0, 0.25], [2.5, 1.0, 0.125], [0.75, 2.0, 0.0]]


def test_an_expert_has_its_number_in_the_model(registry: CollectorRegistry) -> None:
    """Not its place on the device."""
    device(registry, SOMETHING)

    rows = [value(registry, "asap_expert_rows_total", moe_device="1", expert=expert) for expert in ("8", "9", "0")]
    assert rows == [10, 30, None]


def test_the_entropy_is_of_the_last_second(registry: CollectorRegistry) -> None:
    """Two kinds of steps, as often, are one bit; afterwards nothing came."""
    device(registry, NOTHING, SOMETHING)
    assert value(registry, "asap_layer_order_entropy_bits", moe_device="1") == 1.0

    again = CollectorRegistry()
    device(again, SOMETHING, SOMETHING)
    assert value(again, "asap_layer_order_entropy_bits", moe_device="1") == 0.0


def test_a_rank_exports_where_its_time_went(registry: CollectorRegistry) -> None:
    """Its phases, its layers and rows, and for which device it waited."""
    counted = RankTotals(
        duty=Duty(1.5, 6, 600), dispatch_s=0.5, combine_s=0.25, idle_s=9.0, backpressure_s_M=(0.0, 0.125)
    )
    RankMetrics(PrometheusExporter(registry, app="a", dp_group="0", tp_rank="1"), lambda: counted).report()

    rank = {"dp_group": "0", "tp_rank": "1"}
    phases = ("compute", "dispatch", "combine")
    assert [value(registry, "asap_attention_seconds_total", phase=phase, **rank) for phase in phases] == [
        1.5,
        0.5,
        0.25,
    ]
    full = [value(registry, "asap_backpressure_seconds_total", moe_device=e, **rank) for e in ("0", "1")]
    assert full == [0.0, 0.125]
    assert [value(registry, f"asap_attention_{what}_total", **rank) for what in ("items", "rows")] == [6, 600]
