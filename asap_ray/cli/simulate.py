"""asap-ray simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.cli.case_options import Dequantise, Duration, Hardware, Interconnect, Model, Skew, Slo, Trace
from asap_ray.cli.serve import Dp, Ep, Tp


def simulate(
    system: Annotated[str, typer.Option(help="asap, or a system to compare with (docs/simulate.md).")] = "asap",
    rps: Annotated[float, typer.Option(help="Requests a second.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.", min=0)] = 0,
    duration: Duration = 300.0,
    model: Model = "deepseek-v3.2",
    hardware: Hardware = "ascend-910c",
    interconnect: Interconnect = "supernode",
    dp: Dp = 4,
    tp: Tp = 4,
    ep: Ep = 16,
    skew: Skew = "uniform",
    trace: Trace = "A",
    dequantise: Dequantise = 0.0,
    slo: Slo = 5.0,
    criterion: Annotated[str, typer.Option(help="What the objective is for: mean, p99, attainment:0.9.")] = "mean",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write settings, summary and requests here.")] = None,
) -> None:
    """Run one system in virtual time under one load, at the paper's scale unless told otherwise."""
    from asap_ray.evaluation.points import Case, Point, outcome_of, run_of
    from asap_ray.evaluation.replay_report import check_writable
    from asap_ray.evaluation.simulation_report import SimulationReport
    from asap_ray.evaluation.slo import criterion_of
    from asap_ray.evaluation.sweep import case_bound

    case = Case(
        model=model,
        hardware=hardware,
        interconnect=interconnect,
        dp=dp,
        tp=tp,
        ep=ep,
        skew=skew,
        trace=trace,
        dequantise_s=dequantise,
    )
    judged_by = criterion_of(criterion)
    if json_file:
        check_writable(json_file)
    point = Point(system=system, case=case, rps=rps, duration_s=duration, seed=seed)
    run = run_of(point)
    report = SimulationReport(
        point=point,
        run=run,
        outcome=outcome_of(run, case.setup()),
        bound=case_bound(case),
        slo_s=slo,
        criterion=judged_by,
    )
    Console(highlight=False, soft_wrap=True).print(report.tables())
    if json_file:
        report.write_json(json_file)
