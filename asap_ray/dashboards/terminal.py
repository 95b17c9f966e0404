"""The dashboard of one instance in a terminal."""

from __future__ import annotations

from typing import Final

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asap_ray.dashboards.looks import Span
from asap_ray.telemetry import frontend

_LATENCIES: Final = {
    "time to first token": frontend.TTFT,
    "queue": frontend.QUEUE_TIME,
    "prefill": frontend.PREFILL_TIME,
    "end to end": frontend.E2E,
}
_SHARES: Final = (0.5, 0.9, 0.99)
_BAR: Final = 10


def page(url: str, pace: Span, answers: Span) -> RenderableType:
    """All there is to see: rates over `pace`, latencies of the requests that ended in `answers`."""
    return Group(_headline(url, pace), _requests(pace), "", _latencies(answers), "", _devices(pace))


def _headline(url: str, span: Span) -> Text:
    missing = span.now.missing
    state = Text(missing, style="bold red") if missing else Text("ready", style="green")
    return Text.assemble((span.now.model, "bold"), f" at {url}: ", state)


def _requests(span: Span) -> Text:
    running, waiting = span.now.total(frontend.RUNNING), span.now.total(frontend.WAITING)
    parts = [
        f"{running:.0f} running, {waiting:.0f} waiting",
        f"{span.rate(frontend.REQUEST_SUCCESS):.2f} requests/s",
        f"{span.rate(frontend.PROMPT_TOKENS):,.0f} prompt tokens/s",
        f"{span.rate(frontend.GENERATION_TOKENS):,.1f} generated/s",
    ]
    if span.now.has(frontend.KV_CACHE_USAGE):
        parts.append(f"KV cache {span.now.total(frontend.KV_CACHE_USAGE):.0%}")
    if queries := span.growth(frontend.PREFIX_QUERIES):
        parts.append(f"prefix hits {span.growth(frontend.PREFIX_HITS) / queries:.0%}")
    return Text("; ".join(parts))


def _latencies(span: Span) -> Table:
    when = "since the start" if span.seconds == float("inf") else f"in the last {span.seconds:.0f} s"
    table = _table(f"seconds, {when}", "answers", "mean", *(f"p{100 * share:g}" for share in _SHARES))
    for name, metric in _LATENCIES.items():
        values = [span.mean(metric), *(span.quantile(share, metric) for share in _SHARES)]
        count = f"{span.growth(metric, '_count'):.0f}"
        table.add_row(name, count, *("-" if value is None else f"{value:.3f}" for value in values))
    return table


def _devices(span: Span) -> Table:
    table = _table("devices", "computes", "", "items/s", "rows/s", "rows/item")
    for device in span.now.duty:
        duty, items, rows = (span.device_rate(device, total) for total in ("compute_s", "num_items", "num_rows"))
        if duty is None or items is None or rows is None:
            table.add_row(device, "-")
        else:
            each = f"{rows / items:,.1f}" if items else "-"
            bar = Bar(1.0, 0.0, min(duty, 1.0), width=_BAR)
            table.add_row(device, f"{duty:.0%}", bar, f"{items:,.0f}", f"{rows:,.0f}", each)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, min_width=20)
    for other in others:
        table.add_column(other, justify="right", min_width=8 if other else _BAR)
    return table
