"""How fast virtual time runs, and whether its two levels of detail agree: one core.

    python benchmarks/virtual_time.py [--quick] [--json FILE]

Five minutes of the paper's instance (60 s of it with --quick), preset A, seed 0. `pooled` runs a TP group and all MoE
devices as one each, `ranks` every (i, j) and e. JSON rows: {mode, rps, duration_s, requests, ttft_mean_s (simulated),
wall_s, events, events_per_s (measured)}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from asap_ray.evaluation.systems import SYSTEMS, paper_setup
from asap_ray.workload.lengths import paper_trace

Point = tuple[str, float]
QUICK: tuple[Point, ...] = (("pooled", 20), ("pooled", 4), ("ranks", 4))
FULL: tuple[Point, ...] = (("pooled", 20), ("pooled", 4), ("ranks", 4), ("pooled", 16), ("ranks", 16))
SYSTEM = "paper"


def measure(mode: str, rps: float, duration_s: float) -> dict[str, object]:
    """One run, by the wall clock."""
    setup = replace(paper_setup(), is_pooled=mode == "pooled")
    trace = paper_trace(rps, duration_s, seed=0)
    began_s = time.perf_counter()
    run = SYSTEMS[SYSTEM](setup, trace)
    wall_s = time.perf_counter() - began_s
    return {
        "mode": mode,
        "rps": rps,
        "duration_s": duration_s,
        "requests": len(run.rows),
        "ttft_mean_s": statistics.fmean(row.ttft_s for row in run.rows if row.ttft_s is not None),
        "wall_s": wall_s,
        "events": run.num_events,
        "events_per_s": run.num_events / wall_s,
    }


def main() -> None:
    """Print a table; write rows where asked."""
    parser = argparse.ArgumentParser(description="Speed of virtual time, pooled and rank by rank.")
    parser.add_argument("--quick", action="store_true", help="60 s instead of 300, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = []
    print(f"{'mode':>8}{'RPS':>6}{'requests':>10}{'mean TTFT s':>13}{'wall s':>9}{'events':>12}{'events/s':>10}")
    for mode, rps in QUICK if arguments.quick else FULL:
        row = measure(mode, rps, 60.0 if arguments.quick else 300.0)
        results.append(row)
        print(
            f"{mode:>8}{rps:>6g}{row['requests']:>10}{row['ttft_mean_s']:>13.4f}{row['wall_s']:>9.2f}"
            f"{row['events']:>12}{row['events_per_s']:>10.0f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
