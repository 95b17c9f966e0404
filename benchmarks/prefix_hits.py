"""What a prefix cache saves of a trace, by its size and by where prompts are placed (docs/kvcache.md).

Prompts go through the product's pool and prefix cache one after another on each group; no token is computed. Hit rates
are counted; seconds are simulated, with the paper's attention cost on its instance (D=4, T=4).

    python benchmarks/prefix_hits.py [--quick] [--json FILE] [--trace FILE] [--block-size 128]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from asap_ray.evaluation.sync_systems import attention_work
from asap_ray.evaluation.systems import paper_setup
from asap_ray.kvcache.placement import Cost, Offer, place
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.replay import Choose, Prompt, Served, replay
from asap_ray.workload.trace import TraceRequest, dequantise, scale_rate
from asap_ray.workload.trace_blocks import ideal_hits, trace_block_keys
from asap_ray.workload.trace_file import bundled_trace, read_trace

MOONCAKE_STEP_S: Final = 3.0
"""The trace counts time in steps so long; its requests are spread over them (seed 0)."""

SIZES: Final = (1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22)
"""Tokens of a cache."""

RATES: Final = (0.5, 1.0)
"""Times the trace's own."""


def least_queue(num_tokens: int, offers: Sequence[Offer], cost: Cost) -> Offer:  # noqa: ARG001
    """Load alone, as without a prefix cache."""
    return min(offers, key=lambda offer: offer.queue_s)


def most_cached(num_tokens: int, offers: Sequence[Offer], cost: Cost) -> Offer:  # noqa: ARG001
    """Affinity alone; where nothing is cached, the least queue."""
    return min(offers, key=lambda offer: (-offer.cached_tokens, offer.queue_s))


PLACEMENTS: Final[dict[str, Choose]] = {"least queue": least_queue, "most cached": most_cached, "first done": place}


@dataclass(frozen=True)
class Outcome:
    """One replay: shares of all prompt tokens, and simulated TTFTs in seconds."""

    placement: str
    rate: float  # times the trace's
    num_groups: int
    tokens_per_group: int | None  # None: all that was ever seen
    gigabytes_per_group: float
    hit_rate: float
    num_too_long: int
    ttft_mean_s: float
    ttft_p99_s: float
    busiest: float  # computing time of the busiest group over the mean


class Bench:
    """One trace, and the paper's instance to run it on."""

    def __init__(self, trace: Sequence[TraceRequest], block_size: int) -> None:
        self._trace = trace
        self._block_size = block_size
        self._keys = [trace_block_keys(each, block_size) for each in trace]
        shape, attention = paper_setup().shape, attention_work(paper_setup().spec().cost)
        self._token_bytes = shape.kv_bytes * shape.num_layers
        self._cost: Cost = lambda past, now: shape.num_layers * attention(past, now)
        self.prompt_tokens = sum(each.input_length for each in trace)

    def run(self, name: str, rate: float, num_groups: int, num_tokens: int | None) -> Outcome:
        """Replay with one placement at `rate` times the trace's; `num_tokens` a cache, or all there are."""
        prompts = [
            Prompt(arrival_s=each.timestamp_s, num_tokens=each.input_length, keys=keys)
            for each, keys in zip(scale_rate(self._trace, rate), self._keys, strict=True)
        ]
        seen_tokens = num_tokens or self.prompt_tokens + len(prompts) * self._block_size
        num_blocks = seen_tokens // self._block_size
        caches = [PrefixCache(BlockPool(num_blocks, self._block_size)) for _ in range(num_groups)]
        served = replay(prompts, caches, self._cost, PLACEMENTS[name])
        ttft_s = [each.ttft_s for each in served]
        return Outcome(
            placement=name,
            rate=rate,
            num_groups=num_groups,
            tokens_per_group=num_tokens,
            gigabytes_per_group=(num_tokens or 0) * self._token_bytes / 1e9,
            hit_rate=sum(each.cached_tokens for each in served) / self.prompt_tokens,
            num_too_long=sum(each.is_too_long for each in served),
            ttft_mean_s=float(np.mean(ttft_s)),
            ttft_p99_s=float(np.quantile(ttft_s, 0.99)),
            busiest=self._busiest(served, num_groups),
        )

    def _busiest(self, served: Sequence[Served], num_groups: int) -> float:
        busy_s = np.zeros(num_groups)
        for each in served:
            busy_s[each.group] += self._cost(each.cached_tokens, each.num_tokens - each.cached_tokens)
        return float(busy_s.max() / busy_s.mean())


def by_size(bench: Bench, sizes: Sequence[int]) -> Iterator[Outcome]:
    """One cache for all prompts; a line a size."""
    print("| cache, tokens | GB | hit rate | prompts too long |", "|---:|---:|---:|---:|", sep="\n")
    for num_tokens in (*sizes, None):
        outcome = bench.run("first done", 1.0, 1, num_tokens)
        size = f"{num_tokens:,} | {outcome.gigabytes_per_group:.0f}" if num_tokens else "unbounded | "
        print(f"| {size} | {outcome.hit_rate:.1%} | {outcome.num_too_long} |", flush=True)
        yield outcome


def by_placement(bench: Bench, sizes: Sequence[int], rates: Sequence[float]) -> Iterator[Outcome]:
    """Four groups, a cache each; a line a size, rate and placement."""
    columns = ("cache, tokens", "rate", "placement", "hit rate", "mean TTFT, s", "p99, s", "busiest over mean")
    print("", f"| {' | '.join(columns)} |", "|---:|---:|---|---:|---:|---:|---:|", sep="\n")
    for num_tokens, rate, name in product(sizes, rates, PLACEMENTS):
        outcome = bench.run(name, rate, 4, num_tokens)
        times = f"{outcome.ttft_mean_s:.2f} | {outcome.ttft_p99_s:.2f} | {outcome.busiest:.2f}"
        print(f"| {num_tokens:,} | {rate:g} | {name} | {outcome.hit_rate:.1%} | {times} |", flush=True)
        yield outcome


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundred prompts and two sizes: a check that it runs")
    parser.add_argument("--json", type=Path, help="all rows go to this file")
    parser.add_argument("--trace", type=Path, default=bundled_trace(), help="Mooncake JSONL with hash_ids")
    parser.add_argument("--block-size", type=int, default=128)
    options = parser.parse_args()
    trace = dequantise(read_trace(options.trace), MOONCAKE_STEP_S, seed=0)
    sizes, rates = (SIZES, RATES) if not options.quick else (SIZES[1:3], RATES[:1])
    trace = trace[:100] if options.quick else trace
    bench = Bench(trace, options.block_size)
    ideal = sum(ideal_hits(trace)) / bench.prompt_tokens
    print(f"{len(trace)} prompts of {bench.prompt_tokens:,} tokens in all; the trace's ideal: {ideal:.1%}\n")
    outcomes = [*by_size(bench, sizes), *by_placement(bench, (SIZES[2], SIZES[-1]), rates)]
    if options.json:
        rows = [asdict(each) | {"kind": "simulated"} for each in outcomes]
        options.json.write_text(json.dumps({"ideal_hit_rate": ideal, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
