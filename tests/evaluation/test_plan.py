"""The planner: what fits, what is promised, what is simulated, and what is written for `asap-ray serve`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from asap_ray.cli import main
from asap_ray.config import config_from
from asap_ray.errors import ConfigError
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.plan import Explore, Plan, Question, make_plan
from asap_ray.evaluation.plan_candidates import PlannedCase
from asap_ray.evaluation.plan_report import serve_config, serve_yaml, tables, write_json
from asap_ray.evaluation.points import Point
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.searches import explore as explore_all
from asap_ray.spec import paper
from tests.evaluation.fakes import FakeWorkers
from tests.evaluation.planned import CASE, MEAN


def question(case: PlannedCase = CASE, num_devices: int = 32) -> Question:
    """Few splits, one seed."""
    return Question(
        case=case,
        num_devices=num_devices,
        objective=MEAN,
        rate_rps=None,
        num_simulated=3,
        seeds=(0,),
        duration_s=60.0,
        resolution_rps=0.5,
    )


def favours_tp_4(point: Point) -> float:
    """TTFT in a world where T=4 carries most, a batch target of 4096 helps, and barriers cost a half."""
    capacity = 16.0 if point.case.tp == 4 else 12.0
    capacity *= 0.5 if point.system == "strong" else 1.0
    assert isinstance(point.case, PlannedCase)
    capacity += point.case.inflection_tokens == 4096
    return 5.0 * point.rps / capacity


@pytest.fixture(scope="module")
def explore(tmp_path_factory: pytest.TempPathFactory) -> Explore:
    """Answers searches from `favours_tp_4`."""
    journal = Journal(tmp_path_factory.mktemp("plan") / "journal.jsonl")

    def answer(searches: Sequence[Search[Any]]) -> list[Any]:
        return explore_all(searches, journal, FakeWorkers(favours_tp_4).crew)

    return answer


@pytest.fixture(scope="module")
def plan(explore: Explore) -> Plan:
    """32 devices in that world."""
    return make_plan(question(), explore)


def test_only_what_fits_is_simulated(plan: Plan) -> None:
    """Nothing beyond a device's memory has a row."""
    assert all(row.candidate.fits for row in plan.rows)


def test_every_tensor_degree_is_simulated_before_its_neighbours(plan: Plan) -> None:
    """Closed forms hardly tell T apart: three splits to simulate have three different T."""
    splits = {row.candidate.degrees for row in plan.rows if row.candidate.system == "asap"}

    assert len({each.tp for each in splits}) == len(splits) == 3


def test_the_best_rate_comes_first(plan: Plan) -> None:
    """16 RPS at T=4, and one more with the better batch target."""
    best = plan.rows[0]

    assert (best.candidate.case.tp, best.candidate.case.inflection_tokens, best.slo_rps) == (4, 4096, 17.0)


def test_limits_are_refined_on_the_best_split_alone(plan: Plan) -> None:
    """Targets of half, twice and four times 2048 tokens; thresholds of an 8th and a quarter of 32k."""
    limits = {
        (row.candidate.case.inflection_tokens, row.candidate.case.solo_tokens)
        for row in plan.rows
        if row.candidate.degrees == plan.best_async.candidate.degrees
    }

    assert limits == {(None, None), (1024, None), (4096, None), (8192, None), (None, 4096), (None, 8192)}


def test_all_are_compared_at_half_of_the_best_rate(plan: Plan) -> None:
    """Unless a rate is given."""
    assert plan.load_rps == plan.rows[0].slo_rps / 2


def test_a_plan_knows_what_memory_keeps_out(explore: Explore) -> None:
    """The split with most promise does not fit 16 devices; on 32 it does."""
    kept_out = make_plan(question(num_devices=16), explore).kept_out

    assert (kept_out is not None and kept_out.case.ep, make_plan(question(), explore).kept_out) == (8, None)


def test_nothing_fits_is_said_with_the_arithmetic(explore: Explore) -> None:
    """BF16 experts on 16 devices: 18 of them on the fullest of 15, 92.0 GB."""
    closest = r"fits no split of 16 ascend-910c; closest is asap D=1 T=1 E=15: MoE device of 15: weights 92.0 \+"

    with pytest.raises(ConfigError, match=closest):
        make_plan(question(replace(CASE, weight_bytes=2), 16), explore)


def test_no_rate_exceeds_its_bound(tmp_path: Path) -> None:
    """Where even overload is answered within the objective, as in a run too short for its queue."""
    journal = Journal(tmp_path / "journal.jsonl")

    eager = make_plan(question(), lambda searches: explore_all(searches, journal, FakeWorkers(lambda _: 1.0).crew))

    assert {row.slo_rps for row in eager.rows} == {row.candidate.bound_rps // 0.5 * 0.5 for row in eager.rows}


def test_an_objective_nothing_holds_is_refused(explore: Explore) -> None:
    """A mean TTFT of a millisecond."""
    hopeless = replace(question(), objective=replace(MEAN, slo_s=1e-3))

    with pytest.raises(ConfigError, match=r"no split of the devices holds mean TTFT within 0\.001 s at any rate"):
        make_plan(hopeless, explore)


def test_the_written_file_is_a_serve_configuration(plan: Plan) -> None:
    """What `asap-ray serve --config` parses is the best asynchronous split with its limits."""
    parsed = config_from(yaml.safe_load(serve_yaml(plan, "/models/v32")))

    assert parsed == serve_config(plan.best_async, "/models/v32")
    assert parsed.parallel == plan.best_async.candidate.degrees
    assert parsed.prefill == replace(paper().prefill, inflection_tokens=4096)


def test_a_better_synchronous_system_does_not_end_up_in_the_file(plan: Plan) -> None:
    """`asap-ray serve` runs no barriers."""
    upside_down = replace(plan, rows=tuple(reversed(plan.rows)))

    assert upside_down.rows[0].candidate.system == "strong"
    assert config_from(yaml.safe_load(serve_yaml(upside_down, "/m"))).parallel.moe_devices < 32


def said(plan: Plan) -> str:
    """What the command prints, on one line."""
    console = Console(file=io.StringIO(), width=200)
    console.print(tables(plan), markup=False)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_every_simulated_row_is_printed(plan: Plan) -> None:
    """The best with its degrees, limits and rate."""
    best = plan.best_async.candidate.degrees

    assert f"asap {best.dp_groups} x {best.tp} + {best.moe_devices} 4096, 16384 17.0" in said(plan)


def test_where_barriers_carry_more_it_is_said(plan: Plan) -> None:
    """Half of 16 RPS against 17: upside down, disaggregation does not pay."""
    upside_down = replace(plan, rows=tuple(reversed(plan.rows)))

    assert "disaggregation does not pay here" in said(upside_down)
    assert "disaggregation does not pay here" not in said(plan)


@pytest.mark.parametrize(
    ("rate_rps", "verdict"),
    [
        (30.0, "No split carries 30 RPS within the objective; the best reaches 17.0."),
        (8.5, "The best carries 200 % of"),
    ],
)
def test_a_given_rate_gets_a_verdict(plan: Plan, rate_rps: float, verdict: str) -> None:
    """Carried or not."""
    assert verdict in said(replace(plan, question=replace(plan.question, rate_rps=rate_rps)))


def test_json_has_every_candidate(plan: Plan, tmp_path: Path) -> None:
    """Simulated, not simulated, too large: each split is in one of the three."""
    write_json(tmp_path / "plan.json", plan)
    document = json.loads((tmp_path / "plan.json").read_text())

    splits = {(row["system"], row["dp_groups"], row["tp"]) for row in document["rows"]}
    assert len(splits) + len(document["not_simulated"]) + len(document["does_not_fit"]) == 56 + 4
    assert document["kind"] == "simulated"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "16", "--weights", "bf16"], "closest is asap D=1 T=1 E=15"),
        (["--model", "gpt"], "unknown model 'gpt'"),
        (["--trace", "/nowhere"], "neither a preset"),
        (["--slo-ttft", "0"], "slo-ttft=0.0 must be positive"),
        (["--rate", "-1"], "rate=-1.0 must be positive"),
        (["--criterion", "p0"], "criterion 'p0'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """What is wrong, with its value; nothing is simulated."""
    monkeypatch.setattr(sys, "argv", ["asap-ray", "plan", "--out", str(tmp_path), *arguments])

    with pytest.raises(SystemExit) as exit:
        main()

    error = capsys.readouterr().err
    assert (exit.value.code, error.count("\n"), message in error) == (2, 1, True)


@pytest.mark.parametrize(("duration_s", "resolution_rps"), [(0.5, 0.5), (60.0, 1000.0)])
def test_runs_that_judge_nothing_are_refused(duration_s: float, resolution_rps: float, explore: Explore) -> None:
    """Too short or on too coarse a grid: not the same as an objective that nobody holds."""
    asked = replace(question(), duration_s=duration_s, resolution_rps=resolution_rps)

    with pytest.raises(ConfigError, match=f"duration={duration_s:g} s on a grid of resolution={resolution_rps:g}"):
        make_plan(asked, explore)


def test_a_missing_synchronous_system_is_said(explore: Explore) -> None:
    """More devices than experts: with barriers every device needs one of its own."""
    asked = question(replace(CASE, model="mixtral-8x22b"), num_devices=16)

    assert "No synchronous system was compared" in said(make_plan(asked, explore))
