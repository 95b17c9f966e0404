"""What a sweep gave: tables for the terminal, and the JSON file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from asap_ray.evaluation.intervals import interval_of
from asap_ray.evaluation.sweep import SweepResult
from asap_ray.whole_file import write_whole


def tables(result: SweepResult) -> RenderableType:
    """Mean TTFT at each rate, and the rate within the objective; the caller prints it."""
    sweep = result.sweep
    spread = f"mean of seeds 0-{sweep.seeds[-1]} ± 95 % confidence" if len(sweep.seeds) > 1 else "one seed"
    ttft = Table(
        title=f"mean TTFT, s, at each RPS (simulated, {sweep.duration_s:g} s, {spread})",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    ttft.add_column("system", no_wrap=True)
    for rps in sweep.rates:
        ttft.add_column(f"{rps:g}", justify="right")
    slo = Table(title=f"RPS with TTFT within {sweep.slo_s:g} s (simulated)", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    slo.add_column("system", no_wrap=True)
    for criterion in sweep.criteria:
        slo.add_column(criterion.name, justify="right")
    slo.add_column("of the bound", justify="right")
    bound_rps = sweep.bound().rps
    for system in sweep.systems:
        at_rates = [[each.ttft_mean_s for each in result.over_seeds(system, rps)] for rps in sweep.rates]
        ttft.add_row(system, *(interval_of(means_s).text() for means_s in at_rates))
        found = [result.slo(system, criterion.name) for criterion in sweep.criteria]
        share = replace(found[0].times(100 / bound_rps), half_width=None)
        slo.add_row(system, *(each.text() for each in found), f"{share.text(0)} %")
    return Group(ttft, slo)


def write_json(path: Path, result: SweepResult) -> None:
    """Write it for other programs."""
    write_whole(path, json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n")
