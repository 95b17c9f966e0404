"""Each policy of `asap` removed or replaced, on the paper's instance and trace in virtual time (docs/policies.md).

Every number is simulated. The spread is the lowest and the highest of the seeds.

    python benchmarks/policies.py [--quick] [--json FILE] [--rps 21 ...] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from asap_ray.evaluation.ablations import ABLATIONS
from asap_ray.evaluation.systems import paper_setup
from asap_ray.workload.lengths import paper_trace

SHORT_TOKENS = 1024
LONG_TOKENS = 16 * 1024
COLUMNS = ("mean_s", "p99_s", "short_p99_s", "long_p50_s", "max_s")


@dataclass(frozen=True)
class Outcome:
    """One run: TTFTs in seconds of all prompts, of those under 1k tokens, and of those above 16k."""

    name: str
    rps: float
    seed: int
    mean_s: float
    p99_s: float
    short_p99_s: float
    long_p50_s: float
    max_s: float
    attention_duty: float
    moe_duty: float


def run(name: str, rps: float, seed: int, duration_s: float) -> Outcome:
    """Simulate one ablation."""
    outcome = ABLATIONS[name](paper_setup(), paper_trace(rps, duration_s, seed))
    ttft_s = np.array([row.ttft_s for row in outcome.rows], float)
    num_tokens = np.array([row.num_tokens for row in outcome.rows])
    return Outcome(
        name=name,
        rps=rps,
        seed=seed,
        mean_s=float(ttft_s.mean()),
        p99_s=float(np.quantile(ttft_s, 0.99)),
        short_p99_s=float(np.quantile(ttft_s[num_tokens < SHORT_TOKENS], 0.99)),
        long_p50_s=float(np.median(ttft_s[num_tokens > LONG_TOKENS])),
        max_s=float(ttft_s.max()),
        attention_duty=outcome.attention_duty,
        moe_duty=outcome.moe_duty,
    )


def line(outcomes: Sequence[Outcome]) -> str:
    """One row of the table: means over the seeds, and their spread."""
    cells = []
    for column in COLUMNS:
        values = [getattr(outcome, column) for outcome in outcomes]
        cells.append(f"{np.mean(values):6.3f} ({min(values):.3f}-{max(values):.3f})")
    return f"| {outcomes[0].name} | {outcomes[0].rps:g} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print a row an ablation and rate as soon as its seeds are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 s of arrivals and 1 seed: a check that it runs")
    parser.add_argument("--json", type=Path, help="all runs go to this file")
    parser.add_argument("--rps", type=float, nargs="+", default=[21.0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=ABLATIONS, default=list(ABLATIONS), metavar="NAME")
    options = parser.parse_args()
    duration_s, num_seeds = (20.0, 1) if options.quick else (options.seconds, options.seeds)
    outcomes: list[Outcome] = []
    print("| policy | RPS | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 2), sep="\n", flush=True)
    with ProcessPoolExecutor(options.workers) as pool:
        for name, rps in product(options.only, options.rps):
            jobs = [pool.submit(run, name, rps, seed, duration_s) for seed in range(num_seeds)]
            outcomes += (done := [job.result() for job in jobs])
            print(line(done), flush=True)
            if options.json:
                options.json.write_text(
                    json.dumps([asdict(each) | {"kind": "simulated"} for each in outcomes], indent=1)
                )


if __name__ == "__main__":
    main()
