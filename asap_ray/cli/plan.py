"""asap-ray plan."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from asap_ray.cli.case_options import Dequantise, Duration, Hardware, Interconnect, Model, NumWorkers, Skew, Trace
from asap_ray.errors import ConfigError

if TYPE_CHECKING:
    from asap_ray.evaluation.plan_candidates import Objective, PlannedCase


TABLE_WIDTH: Final = 120
"""Where there is no terminal."""


class Weights(StrEnum):
    """Type of a model's weights on the devices."""

    INT8 = "int8"
    BF16 = "bf16"

    @property
    def num_bytes(self) -> int:
        """Of one weight."""
        return 1 if self is Weights.INT8 else 2


def plan(
    model: Model = "deepseek-v3.2",
    hardware: Hardware = "ascend-910c",
    interconnect: Interconnect = "supernode",
    devices: Annotated[int, typer.Option(help="Devices of the instance.", min=2, max=1024)] = 32,
    weights: Annotated[Weights, typer.Option(help="Type of the weights, embedding and routers aside.")] = Weights.INT8,
    trace: Trace = "A",
    dequantise: Dequantise = 0.0,
    skew: Skew = "uniform",
    slo: Annotated[float, typer.Option("--slo-ttft", "--slo", help="TTFT objective in seconds.")] = 5.0,
    criterion: Annotated[str, typer.Option(help="What the objective is for: mean, p99, attainment:0.9.")] = "mean",
    rate: Annotated[float | None, typer.Option(help="Load to carry, RPS; default: half of what the best can.")] = None,
    candidates: Annotated[int, typer.Option(help="Asynchronous splits to simulate.", min=1)] = 6,
    seeds: Annotated[int, typer.Option(help="Repetitions: seeds 0 to N-1.", min=1)] = 1,
    duration: Duration = 120.0,
    resolution: Annotated[float, typer.Option(help="Of the rate within the objective, RPS.", min=0.01)] = 0.2,
    checkpoint: Annotated[str | None, typer.Option(help="`model` of the written file; a directory.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of serve.yaml, plan.json and the journal.")] = Path("out/plan"),
    num_workers: NumWorkers = None,
) -> None:
    """Search D, T, E and the limits of a batch, with and without barriers, for prompts and an objective."""
    from asap_ray.evaluation.plan import Question, make_plan
    from asap_ray.evaluation.plan_candidates import PlannedCase
    from asap_ray.evaluation.plan_report import serve_yaml, tables, write_json
    from asap_ray.evaluation.searches import run_all
    from asap_ray.whole_file import write_whole
    from asap_ray.workload.trace import check_positive

    for what, value in {"rate": rate, "duration": duration}.items():
        if value is not None:
            check_positive(what, value)
    case = PlannedCase(
        model=model,
        hardware=hardware,
        interconnect=interconnect,
        dp=1,
        tp=1,
        ep=1,
        skew=skew,
        trace=trace,
        dequantise_s=dequantise,
        weight_bytes=weights.num_bytes,
    )
    question = Question(
        case=case,
        num_devices=devices,
        objective=_objective(case, slo, criterion),
        rate_rps=rate,
        num_simulated=candidates,
        seeds=tuple(range(seeds)),
        duration_s=duration,
        resolution_rps=resolution,
    )
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=TABLE_WIDTH)
    answer = make_plan(question, lambda searches: run_all(searches, out, num_workers, console))
    console.print(tables(answer), markup=False)
    write_json(out / "plan.json", answer)
    served = out / "serve.yaml"
    write_whole(served, serve_yaml(answer, checkpoint or f"/models/{model}"))
    console.print(f"{served} has the best asynchronous split, for asap-ray serve --config", markup=False)


def _objective(case: PlannedCase, slo_s: float, criterion: str) -> Objective:
    from asap_ray.evaluation.plan_candidates import Objective, sample_lengths
    from asap_ray.evaluation.slo import criterion_of

    if not 0 < slo_s < float("inf"):
        raise ConfigError(f"slo-ttft={slo_s} must be positive and finite")
    return Objective(slo_s=slo_s, criterion=criterion_of(criterion), lengths=sample_lengths(case))
