"""asap-ray report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.cli.case_options import NumWorkers


def report(
    out: Annotated[Path, typer.Option(help="Directory of report.html, report.json, CSV files and the journal.")] = Path(
        "out/report"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="One seed, short runs, fewer cases: under a minute.")] = False,
    traces: Annotated[Path, typer.Option(help="Where public traces may lie; absent ones are left out.")] = Path(
        "../shared/traces"
    ),
    num_workers: NumWorkers = None,
) -> None:
    """Every table and figure of the paper's evaluation, simulated, beside the paper's numbers, in one page."""
    from asap_ray.evaluation.report import make_report
    from asap_ray.evaluation.section import full_effort, quick_effort

    console = Console(highlight=False, soft_wrap=True)
    effort = quick_effort(traces) if quick else full_effort(traces)
    console.print(effort.sweep.bound().text())
    command = " ".join(["asap-ray", *sys.argv[1:]])
    made = make_report(effort, command, out, num_workers, console)
    console.print(f"{out / 'report.html'}: {len(made.sections)} sections")
