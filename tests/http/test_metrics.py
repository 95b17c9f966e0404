"""`GET /metrics`: every number from requests of which all is known. Without Ray `asap_*` are there too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from asap_ray.actors.exporters import Totals
from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.actors.vitals import Vitals
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.telemetry import devices
from tests.http.asking import queue, request, tokens_of
from tests.http.echo_groups import EchoGroups

Scenario = Callable[[httpx.AsyncClient], Awaitable[object]]
Scrape = Callable[[Scenario], dict[str, float]]


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and the labels that are not the same for all."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            chosen = [f"{k}={v}" for k, v in sample.labels.items() if k not in ("model_name", "engine", "app")]
            found[f"{sample.name}{{{','.join(sorted(chosen))}}}" if chosen else sample.name] = sample.value
    return found


@pytest.fixture
def scrape(connect: Callable[[], Any]) -> Scrape:
    """The metrics of a fresh instance after a scenario."""

    def run(scenario: Scenario) -> dict[str, float]:
        async def once() -> str:
            async with connect() as client:
                await scenario(client)
                return (await client.get("/metrics")).text

        return samples(asyncio.run(once()))

    return run


def ask(**fields: object) -> Scenario:
    """One completion of 20 tokens that asks for 3, unless `fields` say otherwise."""
    return lambda client: client.post("/v1/completions", json={"prompt": [7] * 20, "max_tokens": 3} | fields)


async def nothing(client: httpx.AsyncClient) -> None:
    """An instance that nobody asked anything."""


def test_it_is_prometheus_text_whatever_the_scraper_prefers(connect: Callable[[], Any]) -> None:
    """In OpenMetrics, which Prometheus asks for first, the client library would write `vllm_`."""

    async def fetch() -> httpx.Response:
        async with connect() as client:
            return await client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})

    response = asyncio.run(fetch())
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in response.text


def test_a_counter_is_there_before_it_counts(scrape: Scrape) -> None:
    """`increase()` does not see a series' first sample, so that must be 0."""
    counted = scrape(nothing)

    zeros = [
        *(f"vllm:request_success_total{{finished_reason={reason}}}" for reason in ("stop", "length", "abort")),
        *(f"asap_request_errors_total{{status={status}}}" for status in (400, 429, 500, 503)),
        *(f"asap_group_failures_total{{dp_group={group}}}" for group in (0, 1)),
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ]
    assert {name: counted.get(name) for name in zeros} == dict.fromkeys(zeros, 0.0)


def test_one_request_is_counted_in_everything(scrape: Scrape) -> None:
    """20 prompt tokens in a batch of 1.25 times the inflection point; three tokens; one of each time."""
    counted = scrape(ask())

    assert {name: counted[name] for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")} == {
        "vllm:prompt_tokens_total": 20,
        "vllm:generation_tokens_total": 3,
    }
    assert counted["vllm:request_success_total{finished_reason=length}"] == 1
    sums = {"vllm:request_prompt_tokens": 20, "vllm:iteration_tokens_total": 20, "asap_batch_fill_ratio": 1.25}
    assert {name: counted[f"{name}_sum"] for name in sums} == sums
    times = ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time")
    counts = [f"vllm:{name}_seconds_count" for name in (*times, "request_inference_time")]
    assert [counted[name] for name in (*counts, "asap_ttft_lateness_seconds_count")] == [1] * 6


def test_the_parts_of_a_ttft_are_those_of_the_answer(scrape: Scrape) -> None:
    """What the client is told is what is summed; the echo's attention takes 0.25 s of a time that did not pass."""
    answers: list[Any] = []

    async def scenario(client: httpx.AsyncClient) -> None:
        answers.append((await client.post("/v1/completions", json={"prompt": [7] * 20, "max_tokens": 3})).json())

    counted = scrape(scenario)
    told = answers[0]["asap"]["ttft"]

    parts = ("queue", "attention", "dispatch", "combine")
    assert [counted[f"asap_ttft_part_seconds_sum{{part={part}}}"] for part in parts] == [
        told[f"{part}_s"] for part in parts
    ]
    assert counted["vllm:time_to_first_token_seconds_sum"] == told["total_s"]


def test_prompts_of_a_batch_are_counted_one_by_one(scrape: Scrape) -> None:
    """Two prompts of 8 tokens share a batch: one batch, two first tokens."""
    counted = scrape(ask(prompt=[[7] * 8, [9] * 8]))

    names = ("vllm:iteration_tokens_total_count", "vllm:time_to_first_token_seconds_count")
    assert [counted[name] for name in names] == [1, 2]


def test_a_stop_string_ends_a_request_well(scrape: Scrape) -> None:
    """The group decodes on, the client has its answer."""
    counted = scrape(ask(prompt="to be or not", max_tokens=8, stop="to"))

    assert counted["vllm:request_success_total{finished_reason=stop}"] == 1
    assert counted["vllm:request_success_total{finished_reason=abort}"] == 0


@pytest.mark.parametrize(
    ("fields", "status"), [({"prompt": [7] * 65}, 400), ({"model": "other"}, 400), ({"prompt": []}, 400)]
)
def test_a_refusal_is_counted_by_its_status(scrape: Scrape, fields: dict[str, object], status: int) -> None:
    """Not as a request that ended."""
    counted = scrape(ask(**fields))

    assert counted[f"asap_request_errors_total{{status={status}}}"] == 1
    assert sum(value for name, value in counted.items() if name.startswith("vllm:request_success_total")) == 0


@pytest.mark.parametrize(("stream", "fail_after"), [(False, 0), (True, 0), (True, 1)])
def test_a_failed_group_is_counted_and_so_are_its_answers(
    scrape: Scrape, groups: EchoGroups, stream: bool, fail_after: int
) -> None:
    """As the 503 it is, also where the status was out before and an event says so."""
    groups.failure, groups.fail_after = DeviceLost("moe 1 is gone"), fail_after
    counted = scrape(ask(stream=stream))

    assert counted["asap_group_failures_total{dp_group=0}"] == 1
    assert counted["asap_request_errors_total{status=503}"] == 1
    assert counted["asap_ready"] == 0


def test_a_client_that_leaves_is_an_abort(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """In the queue or in a batch; it has no time of its own."""
    groups.gate = asyncio.Event()

    async def scenario() -> dict[str, float]:
        service = PrefillService(config, model, groups)
        leaving = await queue(service, "leaving")
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        return samples(service.metrics.exposition().decode())

    assert asyncio.run(scenario())["vllm:request_success_total{finished_reason=abort}"] == 1


def test_what_runs_and_what_waits(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Four of six prompts fill the slots of both groups; 20 tokens of each of the others wait."""
    groups.gate = asyncio.Event()

    async def scenario() -> dict[str, float]:
        service = PrefillService(config, model, groups)
        tasks = [await queue(service, f"r{k}") for k in range(6)]
        service.report()
        seen = samples(service.metrics.exposition().decode())
        groups.gate.set()
        await asyncio.gather(*tasks)
        return seen

    seen = asyncio.run(scenario())
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "asap_queued_tokens", "asap_ready")
    assert [seen[name] for name in names] == [4, 2, 40, 1]


def test_the_seconds_of_a_slot_are_all_there(config: ServeConfig) -> None:
    """For 4 s nobody has a batch, then for 3 s one group has two and the other one."""
    metrics, scheduler = FrontendMetrics(config, "tiny"), DualBatchScheduler(config.prefill, 2, 4, 128)
    metrics.slots_changed(scheduler, 10.0)
    for name in ("r0", "r1", "r2"):
        scheduler.submit(request(name), 14.0)
        scheduler.assign(14.0)
    metrics.slots_changed(scheduler, 14.0)
    metrics.report(scheduler, is_ready=True, now=17.0)
    seen = samples(metrics.exposition().decode())

    by_group = [[seen[f"asap_slot_seconds_total{{dp_group={g},occupied={n}}}"] for n in range(3)] for g in range(2)]
    assert by_group == [[4, 0, 3], [4, 3, 0]]


def test_prefix_hits_are_those_of_the_caches(config: ServeConfig, model: ServedModel) -> None:
    """The second of two equal prompts of 40 tokens finds two blocks of 16 and computes the rest; nothing runs."""
    groups = EchoGroups(num_blocks=32)
    cached = replace(config, kv_cache=replace(config.kv_cache, block_size=16))

    async def scenario() -> dict[str, float]:
        service = PrefillService(cached, model, groups)
        service.open_caches()
        for name in ("cold", "warm"):
            await tokens_of(service, [request(name, num_tokens=40)])
        await service.close()
        service.report()
        return samples(service.metrics.exposition().decode())

    seen = asyncio.run(scenario())
    names = ("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "kv_cache_usage_perc")
    assert [seen[f"vllm:{name}"] for name in names] == [80, 32, 80, 0]
    assert seen["vllm:cache_config_info{block_size=16,num_gpu_blocks=64}"] == 1


def test_a_first_token_after_the_objective_is_late(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """It arrived 7 s ago and the objective is 5 s."""

    async def scenario() -> dict[str, float]:
        service = PrefillService(config, model, groups)
        now = asyncio.get_running_loop().time()
        await tokens_of(service, [request("late", arrival_s=now - 7.0)])
        return samples(service.metrics.exposition().decode())

    seen = asyncio.run(scenario())
    assert seen["asap_ttft_lateness_seconds_bucket{le=2.5}"] == 1
    assert seen["asap_ttft_lateness_seconds_bucket{le=1.0}"] == 0


def test_a_device_that_served_and_does_not_is_lost_once(config: ServeConfig) -> None:
    """Its counter is 0 before; what was never up cannot be lost."""
    metrics, vitals = FrontendMetrics(config, "tiny"), Vitals.of(["moe:0", "moe:1"])
    metrics.report_devices(vitals)
    before = samples(metrics.exposition().decode())
    vitals.started("created", 2.0)
    for state in ("gone", "gone"):
        vitals.saw({"moe:0": "serving", "moe:1": state})
    metrics.report_devices(vitals)
    after = samples(metrics.exposition().decode())

    losses = [f"asap_device_losses_total{{device=moe:{e}}}" for e in (0, 1)]
    assert [[seen[name] for name in losses] for seen in (before, after)] == [[0, 0], [0, 1]]
    assert [after[f"asap_device_up{{device=moe:{e}}}"] for e in (0, 1)] == [1, 0]


def test_a_start_has_its_time_and_how_long_it_took(config: ServeConfig) -> None:
    """Gauges, because the next start is another process."""
    metrics, vitals = FrontendMetrics(config, "tiny"), Vitals.of(["moe:0"])
    vitals.started("attached", 2.0)
    metrics.report_devices(vitals)
    seen = samples(metrics.exposition().decode())

    assert vitals.start
    assert seen["asap_instance_started_seconds"] == vitals.start.at_s
    assert seen["asap_instance_start_seconds{how=attached}"] == 2.0


class Counted:
    """`Exporter` that remembers what it was told."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def count(self, metric: Any, amount: float, **labels: str) -> None:
        self.amounts[f"{metric.name} {labels}"] += amount

    observe = set = count


def test_totals_count_what_they_grew_by() -> None:
    """From 0 to 3 to 5; then their owner began anew and has 2."""
    counted = Counted()
    totals = Totals(counted)
    for total in (0, 3, 5, 5, 2):
        totals.report(devices.MOE_CALLS, total, moe_device="1")

    assert counted.amounts == {"asap_moe_calls {'moe_device': '1'}": 7}
