"""The pictures of a replay report, as SVG text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from asap_ray.evaluation.replay_report import OTHER, Bucket
from asap_ray.evaluation.svg import ACCENT, ALARM, INK, WIDTH_IN, figure_of, legend_above, style, svg_of
from asap_ray.evaluation.watch import Load, Utilisation
from asap_ray.tracks import device_order
from asap_ray.workload.client import Result

BAR_WIDTH: Final = 0.62

PART_STYLES: Final = {
    "queue_s": ("queue", "#7f8fa9"),
    "attention_s": ("attention", ACCENT),
    "dispatch_s": ("dispatch", "#56b4e9"),
    "combine_s": ("waiting for MoE", "#e69f00"),
    OTHER: ("other batch, network, client", "#d9dee7"),
}
"""Name and colour of each part of a TTFT; the colours stay apart for the colour-blind."""


def ttft_over_time(results: Sequence[Result], slo_s: float) -> str:
    """A point a request, at the time it was due; failures on the lower edge."""
    figure, axes = figure_of(3.6)
    answered = [result for result in results if result.error is None]
    failed = [result.due_s for result in results if result.error is not None]
    if answered:
        points = axes.scatter(
            [result.due_s for result in answered],
            [result.ttft_s for result in answered],
            c=[result.input_length for result in answered],
            norm=LogNorm(),
            cmap="viridis_r",
            s=16,
            linewidths=0,
            alpha=0.85,
        )
        bar = figure.colorbar(points, ax=axes, pad=0.015)
        bar.set_label("prompt tokens", color=INK)
        _label_log(bar.ax.yaxis, _count)
        bar.outline.set_visible(False)
        axes.set_yscale("log")
        _label_log(axes.yaxis, _seconds)
    if failed:
        low = axes.get_ylim()[0]
        axes.plot(failed, [low] * len(failed), "x", color=ALARM, clip_on=False, label=f"failed ({len(failed)})")
    axes.axhline(slo_s, color=ALARM, linestyle="--", linewidth=1, label=f"SLO {slo_s:g} s")
    axes.set_xlabel("time the request was due, s")
    axes.set_ylabel("TTFT")
    legend_above(axes)
    return svg_of(figure)


def ttft_cdf(results: Sequence[Result], slo_s: float) -> str:
    """Share of all requests answered within a time; failures keep the curve below 100 %."""
    figure, axes = figure_of(3.2)
    ttfts_s = sorted(each.ttft_s for each in results if each.error is None and each.ttft_s is not None)
    if ttfts_s:
        shares = 100 * np.arange(1, len(ttfts_s) + 1) / len(results)
        axes.step([ttfts_s[0], *ttfts_s], [0.0, *shares], where="post", color=ACCENT, linewidth=2)
        axes.set_xscale("log")
        _label_log(axes.xaxis, _seconds)
    attained = 100 * sum(ttft_s <= slo_s for ttft_s in ttfts_s) / max(1, len(results))
    axes.axvline(slo_s, color=ALARM, linestyle="--", linewidth=1, label=f"SLO {slo_s:g} s: {attained:.1f} %")
    axes.set_ylim(0, 103)
    axes.set_xlabel("TTFT")
    axes.set_ylabel("requests answered, %")
    legend_above(axes)
    return svg_of(figure)


def ttft_by_length(buckets: Sequence[Bucket]) -> str:
    """Mean TTFT of each range of lengths by its parts, in ms and in per cent (Figure 15)."""
    shown = [(bucket, bucket.ttft_s.mean) for bucket in buckets if bucket.ttft_s is not None]
    figure = Figure(figsize=(WIDTH_IN, 5.4), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    for axes, unit in ((above, 1e3), (below, 100.0)):
        style(axes)
        totals = [1.0 if axes is above else mean_s for _, mean_s in shown]
        _stack_parts(axes, [bucket for bucket, _ in shown], [unit / total for total in totals])
        axes.grid(axis="x", visible=False)
    for place, (_, mean_s) in enumerate(shown):
        text = f"{1e3 * mean_s:,.0f}"
        above.annotate(text, (place, 1e3 * mean_s), (0, 3), textcoords="offset points", ha="center", color=INK)
    labels = [f"{bucket.label}\nn = {bucket.num_requests - bucket.num_errors}" for bucket, _ in shown]
    below.set_xticks(range(len(shown)), labels, fontsize=9)
    below.set_xlabel("prompt tokens")
    below.set_ylabel("share of TTFT, %")
    below.set_ylim(0, 100)
    above.set_ylabel("mean TTFT, ms")
    above.yaxis.set_major_formatter(FuncFormatter(_count))
    above.margins(y=0.12)
    legend_above(above)
    return svg_of(figure)


def _stack_parts(axes: Any, buckets: Sequence[Bucket], scales: Sequence[float]) -> None:
    """A bar a bucket: its parts times its scale; one plain bar where the server told no parts."""
    bottoms = np.zeros(len(buckets))
    for part, (name, colour) in PART_STYLES.items():
        heights = np.array(
            [bucket.ttft_parts_s.get(part, 0.0) * scale for bucket, scale in zip(buckets, scales, strict=True)]
        )
        if heights.any():
            axes.bar(range(len(buckets)), heights, BAR_WIDTH, bottom=bottoms, color=colour, label=name)
            bottoms += heights
    for place, (bucket, scale) in enumerate(zip(buckets, scales, strict=True)):
        if bucket.ttft_s and not bucket.ttft_parts_s:
            axes.bar(place, bucket.ttft_s.mean * scale, BAR_WIDTH, color=INK)


def load_over_time(samples: Sequence[Load]) -> str:
    """Requests that were there, prompt tokens a second, and shares of the KV cache: the overview of the dashboards."""
    shares = {
        "blocks in use": [sample.kv_cache_usage for sample in samples],
        "prompt tokens found": [sample.prefix_hits for sample in samples],
    }
    shown = {name: values for name, values in shares.items() if any(value is not None for value in values)}
    rows: list[tuple[str, dict[str, list[float | None]]]] = [
        ("requests", {"running": [each.running for each in samples], "waiting": [each.waiting for each in samples]}),
        ("prompt tokens/s", {"": [each.prompt_tokens_per_s for each in samples]}),
        *([("KV cache, %", {name: _percent(values) for name, values in shown.items()})] if shown else []),
    ]
    figure = Figure(figsize=(WIDTH_IN, 1.9 * len(rows)), layout="constrained")
    times_s = [sample.t_s for sample in samples]
    below: Any = None
    for below, (label, lines) in zip(figure.subplots(len(rows), sharex=True), rows, strict=True):
        style(below)
        for (name, values), colour in zip(lines.items(), (ACCENT, "#e69f00"), strict=False):
            known = [float("nan") if value is None else value for value in values]
            below.plot(times_s, known, color=colour, linewidth=1.6, marker=".", markersize=3, label=name or None)
        below.set_ylabel(label)
        below.set_ylim(bottom=0)
        below.yaxis.set_major_formatter(FuncFormatter(_count))
        legend_above(below)
    below.set_xlabel("time since the start, s")
    figure.align_ylabels()
    return svg_of(figure)


def _percent(shares: Sequence[float | None]) -> list[float | None]:
    return [None if share is None else 100 * share for share in shares]


def device_utilisation(samples: Sequence[Utilisation]) -> str:
    """A row a device, darker where it computed more; with its mean over the replay."""
    devices = sorted({sample.device for sample in samples}, key=device_order)
    figure, axes = figure_of(1.3 + 0.32 * len(devices))
    labels = []
    mesh: Any = None
    for row, device in enumerate(devices):
        series = sorted((sample.t_s, sample.busy) for sample in samples if sample.device == device)
        edges_s = [0.0, *(t_s for t_s, _ in series)]
        busy = [100 * share for _, share in series]
        mesh = axes.pcolormesh(edges_s, [row - 0.42, row + 0.42], [busy], cmap="Blues", vmin=0, vmax=100)
        spans_s = [later - earlier for earlier, later in pairwise(edges_s)]
        labels.append(f"{device}   {np.average(busy, weights=spans_s):.0f} %")
    axes.set_yticks(range(len(devices)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("time since the start, s")
    axes.grid(visible=False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.015)
    bar.set_label("busy, %", color=INK)
    bar.outline.set_visible(False)
    return svg_of(figure)


def _label_log(axis: Any, label: Callable[[float, int], str]) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_locator(NullLocator())


def _seconds(value: float, _: int) -> str:
    return f"{1e3 * value:g} ms" if value < 1 else f"{value:g} s"


def _count(value: float, _: int) -> str:
    return f"{value:,.0f}"
