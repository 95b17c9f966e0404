"""The rows of a comparison as tables of Markdown, and as curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from equal_cores.loads import Row
from equal_cores.systems import OURS

Figure = Callable[[Row], float]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each system and load: medians over repetitions, and their range."""
    yield "| load | system | TTFT mean, ms | p50 | p90 | p99 | tokens/s | core utilisation | compute share |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for load in _unique(map(_load, rows)):
        for system in _unique(row.system for row in rows):
            same = [row for row in rows if row.system == system and _load(row) == load]
            if same:
                yield f"| {load} | {system} | " + " | ".join(_cells(same)) + " |"


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each baseline and load: its figure over ours of the same repetition."""
    yield "| load | against | TTFT mean, theirs / ours | p99, theirs / ours | tokens/s, ours / theirs |"
    yield "|---|---|---:|---:|---:|"
    ours = {(_load(row), row.repetition): row for row in rows if row.system == OURS}
    for load in _unique(map(_load, rows)):
        for system in _unique(row.system for row in rows if row.system != OURS):
            pairs = [(ours[load, row.repetition], row) for row in rows if row.system == system and _load(row) == load]
            mean = spread([its.ttft_mean_s / own.ttft_mean_s for own, its in pairs], 2)
            p99 = spread([its.ttft_p99_s / own.ttft_p99_s for own, its in pairs], 2)
            rate = spread([own.tokens_per_s / its.tokens_per_s for own, its in pairs], 2)
            yield f"| {load} | {system} | {mean} | {p99} | {rate} |"


def figure_1(rows: Sequence[Row]) -> Iterator[str]:
    """Short prompts beside long ones over short ones alone, in each system."""
    for system in _unique(row.system for row in rows):
        alone, beside = (
            {row.repetition: row.ttft_p50_s for row in rows if row.system == system and row.phase == phase}
            for phase in ("short_alone", "short_beside_long")
        )
        yield f"{system}: short beside long / alone {spread([beside[k] / alone[k] for k in sorted(alone)], 1)}"


def spread(values: Sequence[float], digits: int) -> str:
    """Median, and the range where there is one."""
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def plot(rows: Sequence[Row], file: Path) -> None:
    """Mean and 99th percentile of TTFT over load; medians of repetitions."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - only where asked for

    figures: list[tuple[str, Figure]] = [
        ("mean TTFT, s", lambda row: row.ttft_mean_s),
        ("p99 TTFT, s", lambda row: row.ttft_p99_s),
    ]
    canvas = Canvas(figsize=(10, 4), layout="constrained")
    for axes, (label, figure) in zip(canvas.subplots(1, 2), figures, strict=True):
        for system in _unique(row.system for row in rows):
            own = [row for row in rows if row.system == system and row.phase == "open"]
            loads = sorted({row.load for row in own if row.load is not None})
            medians = [statistics.median(figure(row) for row in own if row.load == load) for load in loads]
            axes.plot(loads, medians, marker="o", label=system)
        axes.set(xlabel="requests/s", ylabel=label, ylim=(0, None))
        axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(file, dpi=120)


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    for figure in _TTFTS:
        yield spread([1e3 * figure(row) for row in rows], 0)
    yield spread([row.tokens_per_s for row in rows], 0)
    yield spread([row.core_utilisation for row in rows], 2)
    yield spread([row.compute_share for row in rows], 2)


_TTFTS: Sequence[Figure] = (
    lambda row: row.ttft_mean_s,
    lambda row: row.ttft_p50_s,
    lambda row: row.ttft_p90_s,
    lambda row: row.ttft_p99_s,
)


def _load(row: Row) -> str:
    return row.phase.replace("_", " ") if row.load is None else f"{row.load:g} requests/s"


def _unique(names: Iterator[str] | Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
