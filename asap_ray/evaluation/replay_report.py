"""What a replay measured: the summary, the table of the terminal, and the JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from asap_ray.errors import ConfigError
from asap_ray.evaluation.watch import Watch
from asap_ray.whole_file import write_whole
from asap_ray.workload.client import Result

TTFT_PARTS: Final = ("queue_s", "attention_s", "dispatch_s", "combine_s")
"""Parts a server reports; `other_s` is the rest of what the client saw: the other batch's turns, the way, lateness."""

OTHER: Final = "other_s"
MAX_BUCKETS: Final = 7
TABLE_COLUMNS: Final = ("prompt tokens", "requests", "failed", "mean", "p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Requests of over_tokens < input_length <= up_to_tokens."""

    over_tokens: int
    up_to_tokens: int
    num_requests: int
    num_errors: int
    ttft_s: Spread | None
    ttft_parts_s: dict[str, float]  # means; empty where the server gave none

    @property
    def label(self) -> str:
        """Its range, as people write it."""
        if self.over_tokens == 0:
            return f"up to {self.up_to_tokens:,}"
        return f"{self.over_tokens + 1:,}-{self.up_to_tokens:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A replay in numbers. A failed request misses the SLO and has no TTFT."""

    num_requests: int
    errors: dict[str, int]  # by kind
    ttft_s: Spread | None
    slo_s: float
    slo_attainment: float  # of all requests
    prompt_tokens: int  # of answered requests
    duration_s: float  # from the start to the last first token
    prompt_tokens_per_s: float
    lateness_p99_s: float  # the client's own
    lateness_max_s: float
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a reader needs to know what was measured, and how."""

    title: str
    date: str
    command: str
    trace: str  # where the requests come from, and what was done to them
    machine: str
    slo_s: float
    results: Sequence[Result]
    watch: Watch = field(default_factory=Watch)


def this_machine() -> str:
    """Where the client runs: system, processor and number of its cores."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def summarise(results: Sequence[Result], slo_s: float) -> Summary:
    """The numbers of a replay; legal for no results, and for nothing but failures."""
    answered = [result for result in results if result.error is None]
    ttfts_s = _ttfts_s(results)
    prompt_tokens = sum(result.input_length for result in answered)
    duration_s = max((result.due_s + (result.ttft_s or 0.0) for result in answered), default=0.0)
    lateness_s = [result.lateness_s for result in results] or [0.0]
    return Summary(
        num_requests=len(results),
        errors=dict(Counter(_kind(result) for result in results if result.error is not None).most_common()),
        ttft_s=_spread(ttfts_s),
        slo_s=slo_s,
        slo_attainment=sum(ttft_s <= slo_s for ttft_s in ttfts_s) / max(1, len(results)),
        prompt_tokens=prompt_tokens,
        duration_s=duration_s,
        prompt_tokens_per_s=prompt_tokens / duration_s if duration_s > 0 else 0.0,
        lateness_p99_s=float(np.percentile(lateness_s, 99)),
        lateness_max_s=max(lateness_s),
        buckets=_buckets(results),
    )


def _ttfts_s(results: Sequence[Result]) -> list[float]:
    return [result.ttft_s for result in results if result.error is None and result.ttft_s is not None]


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
    return Spread(mean=sum(values) / len(values), p50=p50, p90=p90, p99=p99, max=max(values))


def _kind(result: Result) -> str:
    """Errors that differ only in their particulars are of one kind."""
    if result.status not in (0, 200):
        return f"HTTP {result.status}"
    return str(result.error).partition(":")[0][:60]


def _buckets(results: Sequence[Result]) -> tuple[Bucket, ...]:
    """Powers of two up to the longest prompt; all short ones share the first, as in Figure 15."""
    lengths = [result.input_length for result in results]
    if not lengths:
        return ()
    highest = (max(lengths) - 1).bit_length()
    lowest = max((min(lengths) - 1).bit_length(), highest - MAX_BUCKETS + 1)
    edges = [0, *(2**power for power in range(lowest, highest + 1))]
    return tuple(_bucket(over, up_to, results) for over, up_to in pairwise(edges))


def _bucket(over_tokens: int, up_to_tokens: int, results: Sequence[Result]) -> Bucket:
    inside = [result for result in results if over_tokens < result.input_length <= up_to_tokens]
    return Bucket(
        over_tokens=over_tokens,
        up_to_tokens=up_to_tokens,
        num_requests=len(inside),
        num_errors=sum(result.error is not None for result in inside),
        ttft_s=_spread(_ttfts_s(inside)),
        ttft_parts_s=_mean_parts_s(inside),
    )


def _mean_parts_s(results: Sequence[Result]) -> dict[str, float]:
    """Means over the requests whose server gave all parts; what they leave of the TTFT is `other_s`."""
    told = [each for each in results if each.error is None and all(part in each.ttft_parts_s for part in TTFT_PARTS)]
    if not told:
        return {}
    parts_s = {part: sum(each.ttft_parts_s[part] for each in told) / len(told) for part in TTFT_PARTS}
    ttft_s = sum(_ttfts_s(told)) / len(told)
    return {**parts_s, OTHER: max(0.0, ttft_s - sum(parts_s.values()))}


def summary_table(summary: Summary) -> RenderableType:
    """The summary for a terminal; the caller prints it."""
    table = Table(title="TTFT by prompt length, ms (measured)", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for column in TABLE_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    *rows, total = table_rows(summary)
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*total, style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_row(f"TTFT within {summary.slo_s:g} s", f"{100 * summary.slo_attainment:.1f} % of all requests")
    facts.add_row(
        "answered",
        f"{summary.prompt_tokens:,} prompt tokens in {summary.duration_s:.1f} s, "
        f"{summary.prompt_tokens_per_s:,.0f} tokens/s",
    )
    facts.add_row("client lateness", lateness(summary))
    for kind, count in summary.errors.items():
        facts.add_row("failed", f"{count} x {kind}", style="red")
    return Group(table, facts)


def table_rows(summary: Summary) -> list[list[str]]:
    """Cells under `TABLE_COLUMNS`: a row for each length range that occurs, and one for all."""
    rows = [
        [bucket.label, *_cells(bucket.num_requests, bucket.num_errors, bucket.ttft_s)]
        for bucket in summary.buckets
        if bucket.num_requests
    ]
    return [*rows, ["all", *_cells(summary.num_requests, sum(summary.errors.values()), summary.ttft_s)]]


def lateness(summary: Summary) -> str:
    """How far the client itself fell behind its schedule."""
    return f"p99 {1e3 * summary.lateness_p99_s:.1f} ms, max {1e3 * summary.lateness_max_s:.1f} ms"


def _cells(num_requests: int, num_errors: int, ttft_s: Spread | None) -> list[str]:
    values_s = [ttft_s.mean, ttft_s.p50, ttft_s.p90, ttft_s.p99, ttft_s.max] if ttft_s else []
    times = [f"{1e3 * value_s:,.0f}" for value_s in values_s] or ["-"] * 5
    return [f"{num_requests:,}", f"{num_errors:,}" if num_errors else "", *times]


def write_json(path: Path, report: Report) -> None:
    """The report, its summary, and every result, for other programs."""
    content = {"kind": "measured", **asdict(report), "summary": asdict(summarise(report.results, report.slo_s))}
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def check_writable(path: Path) -> None:
    """Refuse a result file that could not be written, before the replay and not after it.

    Raises:
        ConfigError: names the path and the reason.
    """
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    if not existed:
        path.unlink()
