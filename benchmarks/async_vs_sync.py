"""The asynchronous engine beside synchronous baselines, for real: same kernels, same two cores, same requests.

    python benchmarks/async_vs_sync.py [--quick | --sweep] [--pairs N] [--json FILE] [--plot FILE]

The paper's policy, and asap, run D = 2 attention groups and E = 2 MoE devices, four processes on both cores; default,
chunked and strong run D' = E' = 2 collocated processes in lockstep, one a core. One driver feeds all of them through
pipes, without Ray. Every load is played on each system in turn, N times, in alternating order. The table shows
medians and ranges, then ratios of the same repetition. JSON: one row for each (system, load, repetition).

--quick: one load and a burst, once. --sweep: the candidates among which each system's settings were chosen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from equal_cores.loads import Load, Row, burst, measure, open_loop, short_alone, short_beside_long, trace
from equal_cores.report import figure_1, plot, ratios, table
from equal_cores.systems import BEST, CANDIDATES, MODEL, System, running

from asap_ray.errors import AsapError, ConfigError
from asap_ray.evaluation.replay_report import check_writable, this_machine
from asap_ray.models.random_checkpoint import make_random_checkpoint

NUM_PROBES = 2


def main() -> None:
    """Measure, print, write JSON."""
    options = parse()
    try:
        compare(options)
    except AsapError as error:
        sys.exit(f"async_vs_sync: {error}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one load and a burst, once; a minute and a half")
    parser.add_argument("--sweep", action="store_true", help="candidates of every system's settings instead")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="repetitions")
    parser.add_argument(
        "--requests", type=int, default=60, metavar="N", help="of each load; half with --quick, --sweep"
    )
    parser.add_argument(
        "--rates", default="2,3.5,5", metavar="A,B", help="requests a second; the first with --quick, --sweep"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file, after every load")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write TTFT curves to this PNG")
    parser.add_argument("--out", type=Path, default=Path("out/async_vs_sync"), metavar="DIR", help="holds the model")
    return parser.parse_args()


def compare(options: argparse.Namespace) -> None:
    """All loads on all systems."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to start
    if options.json:
        check_writable(options.json)
    if options.pairs < 1:
        raise ConfigError(f"--pairs {options.pairs}: at least 1")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) != 2:
        raise ConfigError(f"the comparison is of two cores, this process may use {len(cores)}; see taskset")
    model = options.out / "model"
    if not (model / "config.json").exists():
        make_random_checkpoint(model, **MODEL)
    loads = chosen_loads(options)
    print(f"{this_machine()}; {describe(loads[0])}", flush=True)
    rows: list[Row] = []
    with running(model, (cores[0], cores[1]), CANDIDATES if options.sweep else BEST) as systems:
        for system in systems.values():  # pages and caches
            measure("warm-up", system, short_beside_long(1), 0)
        for row in rows_of(systems, loads, 1 if options.quick else options.pairs):
            rows.append(row)
            print(f"{row.repetition} {row.phase:<18} {row.load or '':<4} {row.system:<26} {line(row)}", flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    print("\n".join(["", *table(rows), ""]))
    if not options.sweep:
        print("\n".join([*ratios(rows), "", *figure_1(rows)]))
    if options.plot:
        plot(rows, options.plot)


def chosen_loads(options: argparse.Namespace) -> list[Load]:
    """Burst first: it says how much there is.

    Raises:
        ConfigError: no number of requests, or no rates.
    """
    is_short = options.quick or options.sweep
    try:
        rates = [float(rate) for rate in options.rates.split(",")]
    except ValueError:
        raise ConfigError(f"--rates {options.rates!r} must be numbers with commas between them") from None
    if options.requests < 2:
        raise ConfigError(f"--requests {options.requests}: at least 2")
    requests = trace(options.requests // 2 if is_short else options.requests)
    loads = [burst(requests), *(open_loop(requests, rate) for rate in (rates[:1] if is_short else rates))]
    return loads if options.sweep else [*loads, short_alone(NUM_PROBES), short_beside_long(NUM_PROBES)]


def rows_of(systems: dict[str, System], loads: list[Load], num_repetitions: int) -> Iterator[Row]:
    """Load by load the systems take turns, so that a pair is seconds apart; every second time backwards."""
    for repetition in range(num_repetitions):
        for load in loads:
            for name in list(systems)[:: -1 if repetition % 2 else 1]:
                yield measure(name, systems[name], load, repetition)


def describe(load: Load) -> str:
    """How many requests, and how long."""
    lengths = [request.input_length for request in load.requests]
    mean = sum(lengths) / len(lengths)
    return f"{len(lengths)} requests of {min(lengths)} to {max(lengths)} tokens, {mean:.0f} in the mean"


def line(row: Row) -> str:
    """The figures of one row."""
    return (
        f"mean {1e3 * row.ttft_mean_s:6.0f} ms  p99 {1e3 * row.ttft_p99_s:6.0f} ms  {row.tokens_per_s:5.0f} tokens/s"
        f"  utilisation {row.core_utilisation:.2f}"
    )


if __name__ == "__main__":
    main()
