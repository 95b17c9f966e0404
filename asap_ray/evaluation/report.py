"""The whole evaluation: every section, into one HTML page, a JSON file, and a CSV file a table."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from asap_ray import __version__
from asap_ray.errors import ConfigError
from asap_ray.evaluation import sections_model, sections_paper, sections_sensitivity
from asap_ray.evaluation.comparison import compare
from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.journal import code_version
from asap_ray.evaluation.page import STYLE
from asap_ray.evaluation.searches import run_all
from asap_ray.evaluation.section import Cell, Effort, Section, Write, cell_text
from asap_ray.evaluation.section_csv import csv_text
from asap_ray.evaluation.sensitivity_cases import all_cases
from asap_ray.whole_file import write_whole

SECTIONS: Final[tuple[Write, ...]] = (
    sections_paper.ttft,
    sections_paper.curves,
    sections_paper.throughput,
    sections_paper.split,
    sections_paper.ablations,
    sections_model.kernels,
    sections_model.same_tokens,
    sections_model.lengths,
    sections_model.dispatch,
    sections_sensitivity.traces,
    sections_sensitivity.devices,
    sections_sensitivity.links,
    sections_sensitivity.models,
    sections_sensitivity.skews,
    sections_sensitivity.losses,
)
"""In the order of the page. To add one, write its function and name it here."""

TEMPLATE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>asap-ray: the paper's evaluation in virtual time</title>
<style>
{{ style }}
  td:first-child, th:first-child { text-align: left; }
</style>
</head>
<body>
<h1>The paper's evaluation in virtual time</h1>
<p class="note">Every number is <b>simulated</b>: the engine's loops in virtual time, seconds from a cost model
(docs/evaluation.md has its constants and their sources). Columns marked <b>paper</b> are quoted from it. Nothing here
was measured on devices.</p>
{%- if effort.is_quick %}
<p class="error">Quick: one seed, runs of {{ "%g" % effort.sweep.duration_s }} s and fewer cases. Short runs carry
higher rates than five minutes do, and none above {{ "%g" % effort.sweep.limit_of_bound }} times the bound was looked
at. Leave --quick out for numbers to compare with the paper.</p>
{%- endif %}
<dl class="facts">
  <dt>command</dt><dd><code>{{ report.command }}</code></dd>
  <dt>date</dt><dd>{{ report.date }}</dd>
  <dt>version</dt><dd>{{ report.version }}, simulated code {{ report.code }}</dd>
  <dt>runs</dt><dd>{{ "%g" % effort.sweep.duration_s }} s of arrivals, {{ effort.sweep.seeds | length }} seeds, the same
  for every system; ± is the half width of a 95 % confidence interval over seeds (Student's t)</dd>
  <dt>bound</dt><dd>{{ bound }}</dd>
</dl>
{%- for section in report.sections %}
<h2 id="{{ section.name }}">{{ section.title }}</h2>
<p>{{ section.text }}</p>
{%- if section.figure %}
<figure>{{ section.figure | safe }}</figure>
{%- endif %}
<div class="scroll"><table>
<tr>{% for column in section.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{%- for row in section.rows %}
<tr>{% for cell in row %}<td>{{ cell | cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table></div>
{%- endfor %}
</body>
</html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All sections, and how they were got."""

    command: str
    date: str
    version: str
    code: str
    sections: list[Section]


def make_report(effort: Effort, command: str, out: Path, num_workers: int | None, console: Console) -> Report:
    """Simulate what is not in the journal of `out` yet, and write report.html, report.json and the CSV files.

    Raises:
        ConfigError: the directory cannot be written.
    """
    check_directory(out)
    # The large searches stand beside the sections that ask for their points, so that all cores have work.
    sweeps = [*effort.sweep.searches(), *effort.ablations.searches()]
    ahead = [*sweeps, *(compare(case, effort) for case in all_cases(effort))]
    answers = run_all([*ahead, *(write(effort) for write in SECTIONS)], out, num_workers, console)
    report = Report(
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        code=code_version(),
        sections=answers[len(ahead) :],
    )
    write_report(report, effort, out)
    return report


def check_directory(out: Path) -> None:
    """Refuse a directory that could not be written, before the runs and not after them; leaves what is in it.

    Raises:
        ConfigError: names the directory and the reason.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error.strerror}") from None


def write_report(report: Report, effort: Effort, out: Path) -> None:
    """One page, one JSON file, and a CSV file a section; each takes the place of an earlier one when it is whole.

    Raises:
        ConfigError: the directory cannot be written.
    """
    texts = {
        "report.html": html(report, effort),
        "report.json": json.dumps(to_json(report, effort), indent=1, allow_nan=False) + "\n",
        **{f"{section.name}.csv": csv_text(section) for section in report.sections},
    }
    check_directory(out)
    for name, text in texts.items():
        write_whole(out / name, text)


def html(report: Report, effort: Effort) -> str:
    """A page that needs nothing beside it; pictures are inline SVG."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["cell"] = cell_text
    template = environment.from_string(TEMPLATE)
    return template.render(report=report, effort=effort, style=Markup(STYLE), bound=effort.sweep.bound().text())


def to_json(report: Report, effort: Effort) -> dict[str, Any]:
    """Everything but the pictures."""
    settings = asdict(effort.sweep)
    settings["criteria"] = [criterion.name for criterion in effort.sweep.criteria]
    return {
        "kind": "simulated",
        "command": report.command,
        "date": report.date,
        "version": report.version,
        "code": report.code,
        "is_quick": effort.is_quick,
        "settings": settings,
        "resource_bound_rps": effort.sweep.bound().rps,
        "sections": {
            section.name: {
                "title": section.title,
                "text": section.text,
                "columns": section.columns,
                "rows": [[_json(cell) for cell in row] for row in section.rows],
            }
            for section in report.sections
        },
    }


def _json(cell: Cell) -> Any:
    if isinstance(cell, Interval):
        return asdict(cell)
    return None if cell == float("inf") else cell
