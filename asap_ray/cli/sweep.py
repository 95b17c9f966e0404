"""asap-ray sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from asap_ray.cli.case_options import Duration, NumWorkers, Out, Slo, of_a_case, several

if TYPE_CHECKING:
    from asap_ray.evaluation.points import Case
    from asap_ray.evaluation.sweep import Sweep


@of_a_case
def sweep(
    case: Case,
    systems: Annotated[str, typer.Option(help="With commas between.")] = "asap,strong,chunked,default",
    rates: Annotated[str, typer.Option(help="Requests a second, with commas between.")] = "1,4,8,12,16,20",
    seeds: Annotated[int, typer.Option(help="Repetitions: seeds 0 to N-1, the same for all systems.", min=1)] = 5,
    duration: Duration = 300.0,
    resolution: Annotated[float, typer.Option(help="Of the rate within the objective, RPS.", min=0.01)] = 0.1,
    criteria: Annotated[str, typer.Option(help="Of the objective: mean, p90, p99, attainment:0.95 ...")] = "mean,p99",
    slo: Slo = 5.0,
    paper: Annotated[
        bool, typer.Option("--paper", help="All systems of the paper's section 5, instead of --systems.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed of 30 s, three rates, 0.5 RPS, whatever is asked for.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows and rates here.")] = None,
    out: Out = Path("out/sweep"),
    num_workers: NumWorkers = None,
) -> None:
    """TTFT against rate, and the highest rate within the objective, of several systems in virtual time."""
    from asap_ray.evaluation.slo import criterion_of
    from asap_ray.evaluation.sweep import PAPER_SYSTEMS, Sweep, quickened

    plan = Sweep(
        systems=PAPER_SYSTEMS if paper else several(systems, "systems", str),
        case=case,
        rates=several(rates, "rates", float),
        seeds=tuple(range(seeds)),
        duration_s=duration,
        slo_s=slo,
        resolution_rps=resolution,
        criteria=several(criteria, "criteria", criterion_of),
    )
    _run(quickened(plan) if quick else plan, json_file, out, num_workers)


def _run(plan: Sweep, json_file: Path | None, out: Path, num_workers: int | None) -> None:
    from asap_ray.evaluation.replay_report import check_writable
    from asap_ray.evaluation.searches import run_all
    from asap_ray.evaluation.sweep_report import tables, write_json

    if json_file:
        check_writable(json_file)
    console = Console(highlight=False, soft_wrap=True)
    console.print(plan.bound().text())
    result = plan.result(run_all(plan.searches(), out, num_workers, console))
    console.print(tables(result))
    if json_file:
        write_json(json_file, result)
