"""The pictures of the report, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator

from asap_ray.evaluation.intervals import Interval, Side
from asap_ray.evaluation.svg import ALARM, INK, figure_of, legend_above, svg_of

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f8fa9", "#1d2b45")
"""Apart for the colour-blind."""

SIGNS: Final[dict[Side, str]] = {"": "", "at least": "≥", "at most": "≤"}

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Name -> (x, y) points."""


def lines(series: Series, x_label: str, y_label: str, *, log: str = "", limit: tuple[str, float] | None = None) -> str:
    """A line a series; `log` names the logarithmic axes, `limit` is a named horizontal line."""
    figure, axes = figure_of(3.6)
    for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, "o-", color=colour, markersize=4, label=name)
    if limit:
        axes.axhline(limit[1], color=ALARM, linestyle="--", linewidth=1, label=limit[0])
    for letter, axis, scale in (("x", axes.xaxis, axes.set_xscale), ("y", axes.yaxis, axes.set_yscale)):
        if letter in log:
            scale("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_locator(NullLocator())
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    legend_above(axes)
    return svg_of(figure)


def stacked(labels: Sequence[str], parts: Mapping[str, Sequence[float]], y_label: str) -> str:
    """A bar a label, of its parts."""
    figure, axes = figure_of(3.6)
    bottoms = np.zeros(len(labels))
    for colour, (name, heights) in zip(COLOURS, parts.items(), strict=False):
        axes.bar(range(len(labels)), heights, 0.62, bottom=bottoms, color=colour, label=name)
        bottoms += np.array(heights)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(y_label)
    legend_above(axes)
    return svg_of(figure)


def beside(labels: Sequence[str], groups: Mapping[str, Sequence[Interval | float | None]], y_label: str) -> str:
    """Bars of each group side by side; None leaves a gap, ≥ stands for "at least"."""
    figure, axes = figure_of(3.2)
    width = 0.8 / len(groups)
    for place, (colour, (name, heights)) in enumerate(zip(COLOURS, groups.items(), strict=False)):
        shift = (place - (len(groups) - 1) / 2) * width
        shown = {x + shift: _interval(height) for x, height in enumerate(heights) if height is not None}
        axes.bar(list(shown), [each.mean for each in shown.values()], width, color=colour, label=name)
        for x, each in shown.items():
            text = f"{SIGNS[each.side]}{each.mean:.3g}"
            axes.annotate(text, (x, each.mean), (0, 2), textcoords="offset points", ha="center", color=INK)
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(y_label)
    axes.margins(y=0.12)
    legend_above(axes)
    return svg_of(figure)


def _interval(height: Interval | float) -> Interval:
    return height if isinstance(height, Interval) else Interval(height, None)
