"""Cases, runs and their numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.evaluation.bound import bound_of
from asap_ray.evaluation.intervals import interval_of
from asap_ray.evaluation.points import Point, paper_case, run_of, run_point
from asap_ray.evaluation.simulate import alone_s
from asap_ray.evaluation.sweep import case_bound
from tests.evaluation.fakes import point


def test_run_is_the_same_every_time() -> None:
    """A point determines its outcome."""
    short = replace(point(), duration_s=5.0)

    assert run_point(short) == run_point(short)


def test_percentiles_are_ttfts_of_requests() -> None:
    """The last of them is the slowest request, none is below the overhead outside the layers."""
    outcome = run_point(replace(point(), duration_s=5.0))

    assert list(outcome.ttft_percentiles_s) == sorted(outcome.ttft_percentiles_s)
    assert len(outcome.ttft_percentiles_s) == 100
    assert outcome.ttft_percentiles_s[0] > 0.105
    assert max(bucket.ttft_p99_s for bucket in outcome.buckets) == outcome.ttft_percentiles_s[-1]


def test_every_request_is_in_one_bucket() -> None:
    """Of Figure 15."""
    outcome = run_point(replace(point(), duration_s=5.0))

    assert sum(bucket.num_requests for bucket in outcome.buckets) == outcome.num_requests


def test_lone_prompts_take_their_kernels_and_the_overhead() -> None:
    """At 0.1 RPS nobody is in the way: TTFT is kernels, 105 ms, and at most 5 ms of waiting for company."""
    setup = paper_case().setup()
    requests = paper_case().requests(0.1, 100.0, seed=0)
    outcome = run_point(replace(point(), system="paper", rps=0.1, duration_s=100.0))
    kernels_s = sum(alone_s(setup.spec().cost, request.input_length) for request in requests) / len(requests)

    assert outcome.ttft_mean_s == pytest.approx(kernels_s + 0.105, abs=0.006)


def test_a_lone_synchronous_prompt_takes_the_kernels_of_its_own_devices() -> None:
    """Of 32 with experts: a step of one prompt lasts as long as they do, so that nothing of it is a wait."""
    case = replace(paper_case(), dp=1, tp=4, ep=28)
    run = run_of(Point(system="default", case=case, rps=0.1, duration_s=50.0, seed=0))
    waits_s = [row.ttft_s - 0.095 - row.queue_s - row.kernel_s for row in run.rows if row.ttft_s]

    assert waits_s == pytest.approx([0.0] * len(run.rows), abs=1e-6)


@pytest.mark.parametrize("system", ["asap", "paper", "default", "chunked", "strong"])
def test_no_part_of_a_ttft_is_negative(system: str) -> None:
    """Pieces of one prompt overlap: its kernels one after another would be longer than it was inside the layers."""
    run = run_of(replace(point(), system=system, duration_s=8.0))
    outside_s = 0.105 if system in ("asap", "paper") else 0.095
    parts_s = [(row.queue_s, row.kernel_s, (row.ttft_s or 0.0) - row.queue_s - row.kernel_s) for row in run.rows]

    assert min(part_s for queue_s, kernel_s, _ in parts_s for part_s in (queue_s, kernel_s)) > -1e-9
    assert min(rest_s for *_, rest_s in parts_s) > outside_s - 1e-9


def test_resource_bound_of_the_paper_is_about_23_rps() -> None:
    """Attention groups with a batch a prompt carry 23.4; with no launch paid at all 24.5, MoE devices 24.0."""
    bound = case_bound(paper_case())

    assert (round(bound.unbatched_rps, 1), round(bound.attention_rps, 1), round(bound.moe_rps, 1)) == (23.4, 24.5, 24.0)
    assert bound.bottleneck == "MoE devices"


def test_slow_links_become_the_bound() -> None:
    """At 12.5 GB/s a device the results of the experts do not fit through: two bytes a value, K rows a token."""
    bound = bound_of(replace(paper_case(), interconnect="ethernet").setup(), [3814])

    assert bound.bottleneck == "links"
    assert bound.rps == pytest.approx(16 * 12.5e9 / (61 * 8 * 7168 * 2 * 3814), rel=1e-3)


@pytest.mark.parametrize("synchronous", ["default", "chunked", "strong"])
def test_asynchrony_outweighs_links_of_hundreds_of_microseconds(synchronous: str) -> None:
    """4.4, at low load: 300 us each way over RDMA still answers sooner than barriers; the rate is another matter."""
    run = Point(system="asap", case=replace(paper_case(), interconnect="rdma"), rps=2.0, duration_s=20.0, seed=0)

    assert run_point(run).ttft_mean_s < 0.9 * run_point(replace(run, system=synchronous)).ttft_mean_s


def test_inflection_of_other_models_gives_experts_as_many_rows() -> None:
    """2k tokens for 256 experts with 8 a token; 1k for 128 with 8."""
    tokens = [
        replace(paper_case(), model=model).setup().prefill.inflection_tokens
        for model in ("deepseek-v3.2", "qwen3-235b-a22b")
    ]

    assert tokens == [2048, 1024]


def recording(path: Path, num_requests: int) -> Path:
    """A request a second, lengths 1, 2, 3 ... hundred."""
    rows = [
        f'{{"timestamp": {1000 * i}, "input_length": {100 * i + 100}, "output_length": 1}}' for i in range(num_requests)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_recorded_trace_is_scaled_to_the_rate(tmp_path: Path) -> None:
    """Round and round: 300 requests in 30 s from a recording of 10 at one a second."""
    case = replace(paper_case(), trace=str(recording(tmp_path / "t.jsonl", 10)))
    requests = case.requests(10.0, 30.0, seed=0)

    assert len(requests) == 300
    assert [request.input_length for request in requests[9:12]] == [1000, 100, 200]
    assert requests[-1].timestamp_s == pytest.approx(29.9)


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_stretch_has_the_rate_it_is_asked_for(seed: int, tmp_path: Path) -> None:
    """Nine of ten requests in a recording's first second: every seed gets 40 requests within 20 s."""
    path = tmp_path / "t.jsonl"
    times_ms = [100 * n for n in range(9)] + [60_000]
    path.write_text("".join(f'{{"timestamp": {t}, "input_length": 9, "output_length": 1}}\n' for t in times_ms))

    requests = replace(paper_case(), trace=str(path)).requests(2.0, 20.0, seed)

    assert len(requests) == 40
    assert requests[-1].timestamp_s < 20.0


@pytest.mark.parametrize(("num_requests", "seed"), [(2, 1), (10, 8)])
def test_any_seed_finds_a_place_in_a_short_recording(num_requests: int, seed: int, tmp_path: Path) -> None:
    """Also in the gap behind its last request."""
    case = replace(paper_case(), trace=str(recording(tmp_path / "t.jsonl", num_requests)))

    assert len(case.requests(2.0, 10.0, seed)) == 20


def test_a_recording_of_one_moment_has_no_rate(tmp_path: Path) -> None:
    """All at once cannot be scaled."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 5, "input_length": 9, "output_length": 1}\n' * 3)

    with pytest.raises(ConfigError, match="two, at two times"):
        replace(paper_case(), trace=str(path)).requests(1.0, 5.0, 0)


def test_seeds_start_a_recording_at_different_places(tmp_path: Path) -> None:
    """Seed 0 at its start."""
    case = replace(paper_case(), trace=str(recording(tmp_path / "t.jsonl", 10)))

    assert [case.requests(1.0, 5.0, seed)[0].input_length for seed in range(3)] == [100, 800, 400]


def test_prompts_above_32k_are_left_out(tmp_path: Path) -> None:
    """As in 5.1: of 400 prompts up to 40k, those up to 32k stay."""
    case = replace(paper_case(), trace=str(recording(tmp_path / "t.jsonl", 400)))

    assert max(request.input_length for request in case.recording()) == 32700


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gpt"}, "unknown model 'gpt'"),
        ({"hardware": "abacus"}, "unknown hardware 'abacus'"),
        ({"interconnect": "pigeon"}, "unknown interconnect 'pigeon'"),
        ({"ep": 257}, "ep=257 exceeds the 256 experts"),
        ({"dp": 0}, "every degree must be at least 1"),
        ({"skew": "some"}, "skew 'some' must be"),
        ({"trace": "Z"}, "trace 'Z' is neither a preset"),
    ],
)
def test_wrong_case_is_refused(wrong: dict[str, object], message: str) -> None:
    """By name and value."""
    with pytest.raises(ConfigError, match=message):
        run_point(replace(point(), case=replace(paper_case(), **wrong)))


def test_interval_is_students() -> None:
    """1 to 5: mean 3, deviation sqrt(2.5), quantile 2.776 of 4 degrees of freedom."""
    interval = interval_of([1.0, 2.0, 3.0, 4.0, 5.0])

    assert interval.mean == 3.0
    assert interval.half_width == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)
    assert interval.text(1) == "3.0±2.0"


def test_one_value_has_no_interval() -> None:
    """And none is shown."""
    assert interval_of([2.0]).text() == "2.00"
