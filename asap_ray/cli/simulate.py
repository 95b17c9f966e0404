"""asap-ray simulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from asap_ray.cli.case_options import Duration, Slo, of_a_case

if TYPE_CHECKING:
    from asap_ray.evaluation.points import Case


@of_a_case
def simulate(
    case: Case,
    system: Annotated[str, typer.Option(help="asap, or a system to compare with (docs/simulate.md).")] = "asap",
    rps: Annotated[float, typer.Option(help="Requests a second.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.", min=0)] = 0,
    duration: Duration = 300.0,
    slo: Slo = 5.0,
    criterion: Annotated[str, typer.Option(help="What the objective is for: mean, p99, attainment:0.9.")] = "mean",
    timeline: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write settings, summary and requests here.")] = None,
) -> None:
    """Run one system in virtual time under one load, at the paper's scale unless told otherwise."""
    from asap_ray.evaluation.points import Point
    from asap_ray.evaluation.replay_report import check_writable
    from asap_ray.evaluation.simulation_report import report_of
    from asap_ray.evaluation.slo import criterion_of
    from asap_ray.laps import no_recorders
    from asap_ray.telemetry.recording import Recordings
    from asap_ray.telemetry.trace_events import write_trace
    from asap_ray.workload.trace import check_positive

    judged_by = criterion_of(criterion)
    check_positive("slo", slo)
    for file in filter(None, (json_file, timeline)):
        check_writable(file)
    recordings = Recordings()
    point = Point(system=system, case=case, rps=rps, duration_s=duration, seed=seed)
    report = report_of(point, slo, judged_by, recordings.device if timeline else no_recorders)
    Console(highlight=False, soft_wrap=True).print(report.tables())
    if timeline:
        write_trace(timeline, recordings.timeline())
    if json_file:
        report.write_json(json_file)
