"""What is asked of a server, and what it takes: the same requests for every system, counted from when they were due."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from asap_ray.errors import Unavailable
from asap_ray.evaluation.replay_report import summarise
from asap_ray.workload.client import Plan, Result, replay
from asap_ray.workload.http_target import HttpTarget, connect, served_model
from asap_ray.workload.prompts import prompt_ids
from asap_ray.workload.trace import TraceRequest, scale_rate

VOCAB_SIZE: Final = 32000
MEAN_TOKENS: Final = 500  # of the lognormal, before it is cut
SIGMA: Final = 1.1
MIN_TOKENS: Final = 16
MAX_TOKENS: Final = 4096

SHORT_TOKENS: Final = 128
LONG_TOKENS: Final = 2000
LEAD_S: Final = 0.02
"""So long after the long prompt comes the short one."""

GREEDY_TOKENS: Final = (20, 200, 700)
RANK_HEADER: Final = "X-data-parallel-rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One phase of one system."""

    phase: str  # burst, open, short_alone, long_alone, short_beside_long
    load: float | None  # requests a second of an open loop
    num_requests: int
    num_failed: int
    tokens_per_s: float | None  # prompt tokens until the last first token; None for one prompt at a time
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    lateness_p99_s: float  # the client's own


def heavy_tailed(num_requests: int, seed: int) -> list[TraceRequest]:
    """Poisson arrivals of one a second, and lognormal prompt lengths cut to 16..4096 tokens.

    The last arrival is at `num_requests` seconds, and lengths are quantiles in random order, so that few requests
    have the rate, the mean and the tail of many.
    """
    rng = np.random.default_rng(seed)
    times_s = rng.exponential(size=num_requests).cumsum()
    times_s *= num_requests / times_s[-1]
    normal = NormalDist(math.log(MEAN_TOKENS) - SIGMA**2 / 2, SIGMA)
    quantiles = [math.exp(normal.inv_cdf((k + 0.5) / num_requests)) for k in range(num_requests)]
    lengths = rng.permutation(np.clip(quantiles, MIN_TOKENS, MAX_TOKENS))
    return [
        TraceRequest(timestamp_s=float(time_s), input_length=int(length), output_length=1)
        for time_s, length in zip(times_s, lengths, strict=True)
    ]


async def burst(url: str, requests: Sequence[TraceRequest], seed: int) -> Measured:
    """All at once: tokens a second are the capacity."""
    at_once = [dataclasses.replace(request, timestamp_s=0.0) for request in requests]
    return await _phase("burst", None, url, at_once, seed)


async def open_loop(url: str, requests: Sequence[TraceRequest], rate: float, seed: int) -> Measured:
    """At `rate` requests a second, however slow the answers are."""
    return await _phase("open", rate, url, scale_rate(requests, rate), seed)


async def _phase(phase: str, load: float | None, url: str, requests: Sequence[TraceRequest], seed: int) -> Measured:
    async with _target(url) as target:
        await _warm_up(target, seed)
        plan = Plan(requests=requests, vocab_size=VOCAB_SIZE, seed=seed)
        return _measured(phase, load, await replay(plan, target, lambda _: None))


async def straggler(url: str, num_ranks: int, repeats: int, seed: int) -> list[Measured]:
    """A short prompt alone, a long one alone, and the short one just after the long one (Figure 1 of the paper).

    Where ranks can be chosen the long prompt goes to the first and the short one to the last; else the server
    chooses. Every prompt is new.
    """
    async with AsyncExitStack() as stack:
        chosen = range(num_ranks) if num_ranks > 1 else [None]
        targets = [await stack.enter_async_context(_target(url, rank)) for rank in chosen]
        first, last = targets[0], targets[-1]
        await _warm_up(last, seed)
        seeds = iter(range(1000 * seed, 1000 * seed + 4 * repeats))
        short = [await _one(last, SHORT_TOKENS, 0.0, next(seeds)) for _ in range(repeats)]
        long = [await _one(first, LONG_TOKENS, 0.0, next(seeds)) for _ in range(repeats)]
        beside = []
        for _ in range(repeats):
            _, result = await asyncio.gather(
                _one(first, LONG_TOKENS, 0.0, next(seeds)), _one(last, SHORT_TOKENS, LEAD_S, next(seeds))
            )
            beside.append(result)
    return [
        dataclasses.replace(_measured(phase, None, results), tokens_per_s=None)
        for phase, results in (("short_alone", short), ("long_alone", long), ("short_beside_long", beside))
    ]


async def first_tokens(url: str) -> list[int]:
    """The greedy first token of fixed prompts: systems that compute the same model agree."""
    async with connect(url) as client:
        body = {"model": (await served_model(client)).name, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        tokens = []
        for num_tokens in GREEDY_TOKENS:
            answer = await client.post("/v1/completions", json=body | {"prompt": _prompt(num_tokens, 0)}, timeout=60)
            if answer.is_error:
                raise Unavailable(f"a prompt of {num_tokens} tokens failed: HTTP {answer.status_code} {answer.text}")
            tokens.append(answer.json()["choices"][0]["token_ids"][0])
        return tokens


@asynccontextmanager
async def _target(url: str, rank: int | None = None) -> AsyncIterator[HttpTarget]:
    async with connect(url) as client:
        if rank is not None:
            client.headers[RANK_HEADER] = str(rank)
        yield HttpTarget(client, (await served_model(client)).name)


async def _warm_up(target: HttpTarget, seed: int) -> None:
    """Servers sleep deeper the longer nobody asks."""
    for num_tokens in (LONG_TOKENS, SHORT_TOKENS, SHORT_TOKENS):
        await _one(target, num_tokens, 0.0, seed)


async def _one(target: HttpTarget, num_tokens: int, due_s: float, seed: int) -> Result:
    request = TraceRequest(timestamp_s=due_s, input_length=num_tokens, output_length=1)
    plan = Plan(requests=[request], vocab_size=VOCAB_SIZE, seed=seed)
    [result] = await replay(plan, target, lambda _: None)
    if result.error:
        raise Unavailable(f"a prompt of {num_tokens} tokens failed: {result.error}")
    return result


def _prompt(num_tokens: int, seed: int) -> list[int]:
    return prompt_ids(TraceRequest(timestamp_s=0, input_length=num_tokens, output_length=1), 0, VOCAB_SIZE, seed)


def _measured(phase: str, load: float | None, results: Sequence[Result]) -> Measured:
    summary = summarise(results, slo_s=math.inf)
    ttft_s = summary.ttft_s
    return Measured(
        phase=phase,
        load=load,
        num_requests=summary.num_requests,
        num_failed=sum(summary.errors.values()),
        tokens_per_s=summary.prompt_tokens_per_s,
        ttft_mean_s=ttft_s.mean if ttft_s else None,
        ttft_p50_s=ttft_s.p50 if ttft_s else None,
        ttft_p99_s=ttft_s.p99 if ttft_s else None,
        lateness_p99_s=summary.lateness_p99_s,
    )
