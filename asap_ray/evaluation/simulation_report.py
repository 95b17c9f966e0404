"""What one simulated run gave: the tables of the terminal and the JSON file, in the terms of a replay."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from asap_ray import __version__
from asap_ray.evaluation.bound import Bound
from asap_ray.evaluation.journal import code_version
from asap_ray.evaluation.points import Outcome, Point, outcome_of, run_of
from asap_ray.evaluation.replay_report import TABLE_COLUMNS, summarise, table_rows
from asap_ray.evaluation.simulate import Row, Run
from asap_ray.evaluation.slo import Criterion
from asap_ray.evaluation.sweep import case_bound
from asap_ray.laps import Recorders, no_recorders
from asap_ray.whole_file import write_whole
from asap_ray.workload.client import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """A run and what to judge it by."""

    point: Point
    run: Run
    outcome: Outcome
    bound: Bound
    slo_s: float
    criterion: Criterion

    def tables(self) -> RenderableType:
        """TTFT by length, and the facts of the run; the caller prints it."""
        summary = summarise(self._results(), self.slo_s)
        table = Table(title="TTFT by prompt length, ms (simulated)", box=SIMPLE_HEAD, pad_edge=False)
        shown = [place for place, column in enumerate(TABLE_COLUMNS) if column != "failed"]
        for place in shown:
            table.add_column(TABLE_COLUMNS[place], justify="right", no_wrap=True)
        for row in table_rows(summary):
            table.add_row(*(row[place] for place in shown))
        facts = Table.grid(padding=(0, 2))
        value_s = self.criterion.value_s(self.outcome)
        verdict = "within" if value_s <= self.slo_s else "above"
        facts.add_row("criterion", f"{self.criterion.name}: {value_s:.3f} s, {verdict} {self.slo_s:g} s")
        facts.add_row(f"TTFT within {self.slo_s:g} s", f"{100 * summary.slo_attainment:.1f} % of all requests")
        facts.add_row(
            "busy", f"attention {100 * self.outcome.attention_duty:.0f} %, MoE {100 * self.outcome.moe_duty:.0f} %"
        )
        facts.add_row("load", f"{self.point.rps:g} RPS; {self.bound.text()}")
        return Group(table, facts)

    def write_json(self, path: Path) -> None:
        """Settings, summary and every request, for other programs."""
        results = self._results()
        content = {
            "kind": "simulated",
            "version": __version__,
            "code": code_version(),
            "settings": {**asdict(self.point), "slo_s": self.slo_s, "criterion": self.criterion.name},
            "resource_bound_rps": self.bound.rps,
            "ttft_mean_s": self.outcome.ttft_mean_s,
            "ttft_p50_s": self.outcome.percentile_s(50),
            "ttft_p90_s": self.outcome.percentile_s(90),
            "ttft_p99_s": self.outcome.percentile_s(99),
            "attention_duty": self.outcome.attention_duty,
            "moe_duty": self.outcome.moe_duty,
            "num_events": self.run.num_events,
            "summary": asdict(summarise(results, self.slo_s)),
            "requests": [
                {"arrival_s": each.due_s, "num_tokens": each.input_length, "ttft_s": each.ttft_s, **each.ttft_parts_s}
                for each in results
            ],
        }
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def _results(self) -> list[Result]:
        return [_result(index, row) for index, row in enumerate(self.run.rows)]


def report_of(
    point: Point, slo_s: float, criterion: Criterion, recorders: Recorders = no_recorders
) -> SimulationReport:
    """Simulate it; raises as `run_of` does."""
    bound = case_bound(point.case)
    run = run_of(point, recorders)
    return SimulationReport(
        point=point, run=run, outcome=outcome_of(run), bound=bound, slo_s=slo_s, criterion=criterion
    )


def _result(index: int, row: Row) -> Result:
    """A row as a replay's client would have seen it."""
    parts = {
        "queue_s": row.queue_s,
        "attention_s": row.stamps.attention_s,
        "dispatch_s": row.stamps.dispatch_s,
        "combine_s": row.stamps.combine_s,
    }
    return Result(
        index=index,
        input_length=row.num_tokens,
        due_s=row.arrival_s,
        lateness_s=0.0,
        ttft_s=row.ttft_s,
        status=200,
        error=None,
        ttft_parts_s=parts,
    )
