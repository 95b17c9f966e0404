"""The replay report as one HTML file that needs nothing beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from asap_ray.evaluation.page import STYLE
from asap_ray.evaluation.replay_plots import (
    device_utilisation,
    load_over_time,
    ttft_by_length,
    ttft_cdf,
    ttft_over_time,
)
from asap_ray.evaluation.replay_report import TABLE_COLUMNS, Report, Summary, lateness, summarise, table_rows
from asap_ray.whole_file import write_whole

TEMPLATE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}</title>
<style>
{{ style }}</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<p class="note">Every number here is <b>measured</b> by the client on the machine named below, with real requests in
real time. None is simulated, none is taken from the paper.</p>
<dl class="facts">
  <dt>date</dt><dd>{{ report.date }}</dd>
  <dt>command</dt><dd><code>{{ report.command }}</code></dd>
  <dt>trace</dt><dd>{{ report.trace }}</dd>
  <dt>machine</dt><dd>{{ report.machine }}</dd>
</dl>
<div class="tiles">
{%- for name, value in tiles %}
  <div class="tile"><b>{{ value }}</b><span>{{ name }}</span></div>
{%- endfor %}
</div>
<p class="note">Requests leave on schedule, whether earlier ones are answered or not. A TTFT counts from the time a
request was due. The client itself was late by: {{ lateness }}.</p>
{%- for kind, count in summary.errors.items() %}
<p class="error">{{ count }} failed: {{ kind }}</p>
{%- endfor %}
<h2>TTFT by prompt length, ms</h2>
<div class="scroll"><table>
<tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{%- for row in rows %}
<tr{% if loop.last %} class="all"{% endif %}>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table></div>
{%- for heading, caption, svg in figures %}
<h2>{{ heading }}</h2>
<figure>{{ svg }}<figcaption>{{ caption }}</figcaption></figure>
{%- endfor %}
</body>
</html>
"""


def write_html(path: Path, report: Report) -> None:
    """Write the report to `path`; pictures are inline SVG."""
    summary = summarise(report.results, report.slo_s)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE)
    page = template.render(
        style=Markup(STYLE),
        report=report,
        summary=summary,
        tiles=_tiles(summary),
        lateness=lateness(summary),
        columns=TABLE_COLUMNS,
        rows=table_rows(summary),
        figures=_figures(report, summary),
    )
    write_whole(path, page)


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    ttft_s = summary.ttft_s
    return [
        ("requests", f"{summary.num_requests:,}"),
        ("failed", f"{sum(summary.errors.values()):,}"),
        ("mean TTFT", f"{1e3 * ttft_s.mean:,.0f} ms" if ttft_s else "-"),
        ("p99 TTFT", f"{1e3 * ttft_s.p99:,.0f} ms" if ttft_s else "-"),
        (f"within {summary.slo_s:g} s", f"{100 * summary.slo_attainment:.1f} %"),
        ("prompt tokens/s answered", f"{summary.prompt_tokens_per_s:,.0f}"),
    ]


def _figures(report: Report, summary: Summary) -> list[tuple[str, str, Markup]]:
    """(heading, caption, picture) of each."""
    figures = [
        (
            "TTFT over time",
            "Each point is a request, at the time it was due. Darker is longer. The scale of TTFT is logarithmic.",
            ttft_over_time(report.results, report.slo_s),
        ),
        (
            "Distribution of TTFT",
            "Share of all requests answered within a time. Failed requests keep the curve below 100 %.",
            ttft_cdf(report.results, report.slo_s),
        ),
        (
            "Where the time goes",
            "Mean TTFT of answered requests, stacked by the parts that the server reports; below, their shares. The "
            "last part is the rest of what the client saw: the other batch's turns on the same devices, the network, "
            "the client. A plain dark bar means that the server reported no parts.",
            ttft_by_length(summary.buckets),
        ),
    ]
    if report.watch.load:
        figures.append(
            (
                "Load",
                "What the server's own metrics said once a second: requests running and waiting, prompt tokens it "
                "answered, blocks of its KV cache in use and prompt tokens found there.",
                load_over_time(report.watch.load),
            )
        )
    if report.watch.utilisation:
        figures.append(
            (
                "Device utilisation",
                "Share of the time that each device computed, between two samples; beside its name the mean. "
                "A group with T > 1 counts the exchanges between its ranks, too.",
                device_utilisation(report.watch.utilisation),
            )
        )
    return [(heading, caption, Markup(svg)) for heading, caption, svg in figures]
