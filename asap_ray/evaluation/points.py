"""One point of an evaluation: a system, a case and a load, by names and numbers, so that it can be kept as a key."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from asap_ray.cost.hardware import hardware_of
from asap_ray.cost.shapes import Shape, shape_of
from asap_ray.cost.skew import skew_of
from asap_ray.errors import ConfigError
from asap_ray.evaluation.simulate import Row, Run
from asap_ray.evaluation.systems import Setup, system_of
from asap_ray.laps import Recorders, no_recorders
from asap_ray.spec import ParallelSpec, PrefillSpec, paper
from asap_ray.workload.lengths import MAX_TOKENS, PRESETS, paper_trace
from asap_ray.workload.trace import TraceRequest, check_positive, dequantise, drop_longer
from asap_ray.workload.trace_file import bundled_trace, read_trace

BUNDLED: Final = "bundled"
"""Name of the trace that is shipped with the product."""

TOKENS_PER_EXPERT: Final = 64
"""The paper's inflection of 2k tokens gives each of 256 experts 64 rows; other models get as many."""

BUCKET_EDGES: Final = (0, 512, 1024, 2048, 4096, 8192, 16384, 1 << 30)
"""Figure 15: below 512, 512 to 1024, ..."""

GOLDEN: Final = 0.618034
"""Seed k of a recorded trace starts this share of it, times k, after its start (modulo its length)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What all systems of a comparison share."""

    model: str
    hardware: str
    interconnect: str
    dp: int
    tp: int
    ep: int
    skew: str
    trace: str  # a length preset, "bundled", or a trace file
    dequantise_s: float  # of a trace file: its times are spread by so much

    def setup(self) -> Setup:
        """The devices, the model and the limits.

        Raises:
            ConfigError: a name or a degree is wrong.
        """
        shape = shape_of(self.model)
        if self.ep > shape.num_experts:
            raise ConfigError(f"ep={self.ep} exceeds the {shape.num_experts} experts of {shape.name}")
        return Setup(
            shape=shape,
            hardware=hardware_of(self.hardware, self.interconnect),
            parallel=ParallelSpec(dp_groups=self.dp, tp=self.tp, moe_devices=self.ep),
            prefill=_limits(shape),
            skew=skew_of(self.skew, shape),
        )

    def requests(self, rps: float, duration_s: float, seed: int) -> list[TraceRequest]:
        """The load of one run.

        Raises:
            ConfigError: the trace cannot be read, or a number is not positive.
        """
        if self.trace in PRESETS:
            return paper_trace(rps, duration_s, seed, self.trace)
        check_positive("rps", rps)
        check_positive("duration_s", duration_s)
        return _recorded(self.recording(), rps, duration_s, seed)

    def recording(self) -> tuple[TraceRequest, ...]:
        """The requests of the trace file that a run may be cut from: none above 32k, as in 5.1."""
        return _recording(self.trace, self.dequantise_s)


def paper_case() -> Case:
    """5.1: DeepSeek-V3.2 on 32 dies, D=4, T=4, E=16; lengths of preset A."""
    return Case(
        model="deepseek-v3.2",
        hardware="ascend-910c",
        interconnect="supernode",
        dp=4,
        tp=4,
        ep=16,
        skew="uniform",
        trace="A",
        dequantise_s=0.0,
    )


def _limits(shape: Shape) -> PrefillSpec:
    prefill = paper().prefill
    inflection_tokens = TOKENS_PER_EXPERT * shape.num_experts // shape.top_k
    return replace(prefill, inflection_tokens=min(inflection_tokens, prefill.solo_tokens))


@functools.cache
def _recording(trace: str, dequantise_s: float) -> tuple[TraceRequest, ...]:
    path = bundled_trace() if trace == BUNDLED else Path(trace)
    if not path.exists():
        raise ConfigError(f"trace {trace!r} is neither a preset ({', '.join(PRESETS)}, {BUNDLED}) nor a file")
    requests = drop_longer(read_trace(path), MAX_TOKENS)
    if len(requests) < 2 or requests[0].timestamp_s == requests[-1].timestamp_s:
        raise ConfigError(
            f"trace {trace!r} has {len(requests)} prompts of at most {MAX_TOKENS} tokens; "
            "a rate takes two, at two times"
        )
    return tuple(dequantise(requests, dequantise_s, seed=0) if dequantise_s else requests)


def _recorded(requests: Sequence[TraceRequest], rps: float, duration_s: float, seed: int) -> list[TraceRequest]:
    """As many requests in a row as come at `rps`, round and round, the stretch they take scaled to `duration_s`.

    So a busy stretch of a recording is no busier than a quiet one; how requests clump inside it stays.
    """
    start_s, end_s = requests[0].timestamp_s, requests[-1].timestamp_s
    length_s = (end_s - start_s) * len(requests) / (len(requests) - 1)  # one mean gap after the last
    first = math.ceil((seed * GOLDEN) % 1.0 * len(requests))

    def time_s(index: int) -> float:
        rounds, place = divmod(index, len(requests))
        return requests[place].timestamp_s - start_s + rounds * length_s

    stop = first + max(1, round(duration_s * rps))
    begin_s = time_s(first)
    factor = duration_s / max(time_s(stop) - begin_s, 1e-9)
    return [
        replace(requests[index % len(requests)], timestamp_s=(time_s(index) - begin_s) * factor)
        for index in range(first, stop)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run."""

    system: str
    case: Case
    rps: float
    duration_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Requests of a range of lengths: means in seconds."""

    up_to_tokens: int
    num_requests: int
    ttft_s: float
    ttft_p99_s: float
    queue_s: float  # from arrival to the admission of the first batch
    kernel_s: float  # after that: what the prompt would take alone on its system, but no more than it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is kept of a run."""

    num_requests: int
    ttft_mean_s: float
    ttft_percentiles_s: tuple[float, ...]  # 1st to 100th, each the TTFT of a request
    attention_duty: float
    moe_duty: float
    buckets: tuple[Bucket, ...]

    def percentile_s(self, percentile: int) -> float:
        """TTFT within which `percentile` of 100 requests are answered."""
        return self.ttft_percentiles_s[percentile - 1]


def run_of(point: Point, recorders: Recorders = no_recorders) -> Run:
    """Simulate it; a pure function of the point, whoever records it.

    Raises:
        ConfigError: a name or a number of the point is wrong.
    """
    system, setup = system_of(point.system), replace(point.case.setup(), recorders=recorders)
    requests = point.case.requests(point.rps, point.duration_s, point.seed)
    if not requests:
        raise ConfigError(f"no request comes within {point.duration_s:g} s at {point.rps:g} RPS, seed {point.seed}")
    return system(setup, requests)


def run_point(point: Point) -> Outcome:
    """Simulate it and keep its numbers; raises as `run_of` does."""
    return outcome_of(run_of(point))


def outcome_of(run: Run) -> Outcome:
    """The numbers of a run in which every request was answered."""
    ttfts_s = [_ttft_s(row) for row in run.rows]
    percentiles_s = np.percentile(ttfts_s, range(1, 101), method="inverted_cdf")
    return Outcome(
        num_requests=len(ttfts_s),
        ttft_mean_s=sum(ttfts_s) / len(ttfts_s),
        ttft_percentiles_s=tuple(map(float, percentiles_s)),
        attention_duty=run.attention_duty,
        moe_duty=run.moe_duty,
        buckets=tuple(_buckets(run.rows)),
    )


def _ttft_s(row: Row) -> float:
    assert row.ttft_s is not None, f"a prompt of {row.num_tokens} tokens was never answered"
    return row.ttft_s


def _buckets(rows: Sequence[Row]) -> list[Bucket]:
    buckets = []
    for over, up_to in pairwise(BUCKET_EDGES):
        inside = [row for row in rows if over < row.num_tokens <= up_to]
        if inside:
            ttfts_s = [_ttft_s(row) for row in inside]
            buckets.append(
                Bucket(
                    up_to_tokens=up_to,
                    num_requests=len(inside),
                    ttft_s=sum(ttfts_s) / len(inside),
                    ttft_p99_s=float(np.percentile(ttfts_s, 99, method="inverted_cdf")),
                    queue_s=max(0.0, sum(row.queue_s for row in inside) / len(inside)),
                    kernel_s=sum(row.kernel_s for row in inside) / len(inside),
                )
            )
    return buckets
