"""What is asked of every system: a scaled real trace at several rates, all of it at once, Figure 1's two prompts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from equal_cores.feed import play
from equal_cores.systems import MAX_TOKENS, MODEL, NUM_WORKERS, System

from asap_ray.batch import Request
from asap_ray.workload.shaping import Shaping
from asap_ray.workload.trace import TraceRequest, scale_rate
from asap_ray.workload.trace_file import bundled_trace, read_trace

SHAPING: Final = Shaping(dequantise_s=3.0, length_factor=0.04, cap_tokens=MAX_TOKENS)
"""The bundled trace, its times spread over its steps of 3 s, its prompts a twenty-fifth as long."""

SHORT_TOKENS: Final = 128
LONG_TOKENS: Final = 2000
LEAD_S: Final = 0.02
"""So long after the long prompt comes the short one."""

APART_S: Final = 2.5
"""From probe to probe: the one before is over."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests at their times."""

    phase: str  # burst, open, short_alone, short_beside_long
    rate: float | None  # requests a second of an open loop
    requests: tuple[TraceRequest, ...]
    least: bool = False  # only the TTFTs of the shortest prompts count


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load on one system, once. Measured."""

    system: str
    phase: str
    load: float | None
    repetition: int
    num_requests: int  # whose TTFTs count
    prompt_tokens: int  # of all
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tokens_per_s: float  # until the last answer: the capacity, in a burst
    core_utilisation: float  # CPU time of the system's processes over wall time of the cores
    compute_share: float  # the same of wall time inside compute calls; above 1 where processes share a core
    ttfts_s: list[float]


def trace(num_requests: int) -> tuple[TraceRequest, ...]:
    """The first requests of the trace."""
    return tuple(SHAPING.apply(read_trace(bundled_trace()))[:num_requests])


def burst(requests: tuple[TraceRequest, ...]) -> Load:
    """All at once, in order."""
    return Load("burst", None, tuple(dataclasses.replace(request, timestamp_s=0.0) for request in requests))


def open_loop(requests: tuple[TraceRequest, ...], rate: float) -> Load:
    """At `rate` requests a second in the mean, bursts and gaps as in the trace."""
    own_rate = len(requests) / requests[-1].timestamp_s
    return Load("open", rate, tuple(scale_rate(requests, rate / own_rate)))


def short_alone(num_probes: int) -> Load:
    """Nothing else runs."""
    return Load("short_alone", None, tuple(_prompt(APART_S * k, SHORT_TOKENS) for k in range(num_probes)))


def short_beside_long(num_probes: int) -> Load:
    """Figure 1: the short prompt comes just after a long one."""
    times_s = [APART_S * k for k in range(num_probes)]
    pairs = [(_prompt(time_s, LONG_TOKENS), _prompt(time_s + LEAD_S, SHORT_TOKENS)) for time_s in times_s]
    return Load("short_beside_long", None, tuple(prompt for pair in pairs for prompt in pair), least=True)


def measure(name: str, system: System, load: Load, repetition: int) -> Row:
    """Play a load. Token ids differ between repetitions, not between systems; lengths and times never differ."""
    prompts = _prompts(load, seed=repetition)
    played = play(system.fleet, system.feed(), prompts)
    least = min(prompt.num_tokens for prompt in prompts)
    ttfts_s = [played.ttfts_s[prompt.request_id] for prompt in prompts if not load.least or prompt.num_tokens == least]
    p50, p90, p99 = (float(each) for each in np.percentile(ttfts_s, (50, 90, 99)))
    num_tokens = sum(prompt.num_tokens for prompt in prompts)
    return Row(
        system=name,
        phase=load.phase,
        load=load.rate,
        repetition=repetition,
        num_requests=len(ttfts_s),
        prompt_tokens=num_tokens,
        ttft_mean_s=float(np.mean(ttfts_s)),
        ttft_p50_s=p50,
        ttft_p90_s=p90,
        ttft_p99_s=p99,
        tokens_per_s=num_tokens / played.wall_s,
        core_utilisation=played.cpu_s / played.wall_s / NUM_WORKERS,
        compute_share=played.duty_s / played.wall_s / NUM_WORKERS,
        ttfts_s=ttfts_s,
    )


def _prompt(time_s: float, num_tokens: int) -> TraceRequest:
    return TraceRequest(timestamp_s=time_s, input_length=num_tokens, output_length=1)


def _prompts(load: Load, seed: int) -> list[Request]:
    tokens = np.random.default_rng(seed)
    return [
        Request(
            request_id=str(index),
            num_tokens=request.input_length,
            arrival_s=request.timestamp_s,
            token_ids=tokens.integers(0, MODEL["vocab_size"], request.input_length, dtype=np.int32).tobytes(),
        )
        for index, request in enumerate(load.requests)
    ]
