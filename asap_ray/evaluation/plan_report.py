"""A plan for a reader, for other programs, and for `asap-ray serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from asap_ray import __version__
from asap_ray.config import ServeConfig, config_to
from asap_ray.evaluation.journal import code_version
from asap_ray.evaluation.plan import Plan, Planned
from asap_ray.evaluation.plan_candidates import ASYNC, Candidate
from asap_ray.whole_file import write_whole

NUM_OTHERS: Final = 6
"""Candidates that were not simulated and are shown."""

SERVED_KEYS: Final = ("max_tokens", "solo_tokens", "inflection_tokens", "row_type")


def tables(plan: Plan) -> RenderableType:
    """The ranked table and what is to be said about it; the caller prints it."""
    objective = plan.question.objective
    table = Table(
        title=f"{plan.question.case.model} on {plan.question.num_devices} {plan.question.case.hardware}, simulated: "
        f"RPS with {objective.criterion.name} TTFT within {objective.slo_s:g} s; TTFT at {plan.load_rps:.1f} RPS, s",
        box=SIMPLE_HEAD,
    )
    table.add_column("D x T + E", no_wrap=True)
    for column in ("batch, solo", "RPS", "mean", "p99", "bottleneck", "next", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in plan.rows:
        found = (f"{row.slo_rps:.1f}", f"{row.ttft_mean_s:.2f}", f"{row.ttft_p99_s:.2f}")
        table.add_row(*_split(row.candidate), *found, *_resources(row.candidate, row.slo_rps))
    table.add_section()
    for candidate in plan.others[:NUM_OTHERS]:
        table.add_row(*_split(candidate), "-", "-", "-", *_resources(candidate, 0.0))
    return Group(table, *_remarks(plan))


def _split(candidate: Candidate) -> tuple[str, str]:
    degrees, prefill = candidate.degrees, candidate.case.setup().prefill
    shape = f"{candidate.system} {degrees.dp_groups} x {degrees.tp}"
    if candidate.system != ASYNC:
        return shape, "-"
    return f"{shape} + {degrees.moe_devices}", f"{prefill.inflection_tokens}, {prefill.solo_tokens}"


def _resources(candidate: Candidate, slo_rps: float) -> tuple[str, ...]:
    """Both scarcest resources, with the headroom of each above the simulated rate, and the fullest device's memory."""
    scarcest = [
        f"{name} {100 * (rps / slo_rps - 1):+.0f} %" if slo_rps else f"{name} {rps:.1f} RPS"
        for name, rps in candidate.bounds[:2]
    ]
    return (*scarcest, f"{100 * candidate.fullest.share:.0f} %")


def _remarks(plan: Plan) -> list[str]:
    """Sync or async, whether the asked load is carried, what memory rules out, and how far to trust the rates."""
    best, served = plan.rows[0], plan.best_async
    remarks = []
    if best.candidate.system != ASYNC:
        is_at_bound = best.slo_rps + plan.question.resolution_rps > best.candidate.bound_rps
        remarks.append(
            f"{best.candidate.text()} carries {_percent(best.slo_rps, served.slo_rps)} the best asynchronous split: "
            + ("at its bound, so longer runs or p99 tell more." if is_at_bound else "disaggregation does not pay here.")
            + " `asap-ray serve` runs the asynchronous one."
        )
    if all(candidate.system == ASYNC for candidate in plan.fitting):
        remarks.append(
            f"No synchronous system was compared: none places {plan.question.case.model}'s experts on "
            f"{plan.question.num_devices} devices, at least one a device, in memory."
        )
    rate_rps = plan.question.rate_rps
    if rate_rps is not None and best.slo_rps < rate_rps:
        remarks.append(f"No split carries {rate_rps:g} RPS within the objective; the best reaches {best.slo_rps:.1f}.")
    elif rate_rps is not None:
        remarks.append(f"The best carries {_percent(best.slo_rps, rate_rps)} the {rate_rps:g} RPS asked for.")
    if first := plan.kept_out:
        remarks.append(
            f"Memory is the limit: {first.text()} promises {first.estimate_rps:.1f} RPS and does not fit. "
            f"{first.fullest.text()}."
        )
    remarks.append(f"{len(plan.ruled_out)} splits do not fit; {len(plan.others)} more do and were not simulated.")
    remarks.append(
        f"A rate is cut to its bound: a run of {plan.question.duration_s:g} s can carry more, with a queue at its end."
    )
    remarks.append(f"The best asynchronous split: {'; '.join(need.text() for need in served.candidate.needs)}.")
    return remarks


def _percent(rps: float, of_rps: float) -> str:
    return f"{100 * rps / of_rps:.0f} % of" if of_rps else "more than"


def serve_config(planned: Planned, checkpoint: str) -> ServeConfig:
    """What `asap-ray serve` needs to run this split."""
    setup = planned.candidate.case.setup()
    return ServeConfig(model=checkpoint, parallel=setup.parallel, prefill=setup.prefill, policy=ASYNC)


def serve_yaml(plan: Plan, checkpoint: str) -> str:
    """The best asynchronous split as a file for `asap-ray serve --config`, with where it comes from."""
    planned, question = plan.best_async, plan.question
    whole = config_to(serve_config(planned, checkpoint))
    chosen = {
        "model": whole["model"],
        "parallel": whole["parallel"],
        "prefill": {key: whole["prefill"][key] for key in SERVED_KEYS},
        "policy": whole["policy"],
    }
    objective = question.objective
    says = (
        f"asap-ray serve --config THIS, planned for {question.case.model} on {question.num_devices} "
        f"{question.case.hardware}, {question.case.interconnect}",
        f"Simulated: {planned.slo_rps:.1f} RPS with {objective.criterion.name} TTFT within {objective.slo_s:g} s; "
        f"mean TTFT {planned.ttft_mean_s:.2f} s at {plan.load_rps:.1f} RPS",
        *(need.text() for need in planned.candidate.needs),
        "`device` is cpu: no other backend serves yet (docs/limits.md). `model` is a directory to be filled in;",
        "asap-ray serve loads the families of docs/models.md and refuses any other by name.",
    )
    return "".join(f"# {line}\n" for line in says) + yaml.safe_dump(chosen, sort_keys=False)


def write_json(path: Path, plan: Plan) -> None:
    """Everything in the table and below it."""
    question = plan.question
    document = {
        "kind": "simulated",
        "version": __version__,
        "code": code_version(),
        "devices": question.num_devices,
        "criterion": question.objective.criterion.name,
        "slo_s": question.objective.slo_s,
        "seeds": list(question.seeds),
        "duration_s": question.duration_s,
        "load_rps": plan.load_rps,
        "rows": [
            _entry(row.candidate)
            | {"slo_rps": row.slo_rps, "ttft_mean_s": row.ttft_mean_s, "ttft_p99_s": row.ttft_p99_s}
            for row in plan.rows
        ],
        "not_simulated": [_entry(candidate) for candidate in plan.others],
        "does_not_fit": [_entry(candidate) for candidate in plan.ruled_out],
    }
    write_whole(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _entry(candidate: Candidate) -> dict[str, Any]:
    degrees, prefill = candidate.degrees, candidate.case.setup().prefill
    return {
        "system": candidate.system,
        "dp_groups": degrees.dp_groups,
        "tp": degrees.tp,
        "moe_devices": degrees.moe_devices,
        "inflection_tokens": prefill.inflection_tokens,
        "solo_tokens": prefill.solo_tokens,
        "bounds_rps": dict(candidate.bounds),
        "estimate_rps": candidate.estimate_rps,
        "memory": [need.text() for need in candidate.needs],
    }
