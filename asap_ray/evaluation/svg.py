"""The house style of a picture, and its SVG text."""

from __future__ import annotations

import io
from typing import Any, Final

from matplotlib.figure import Figure

WIDTH_IN: Final = 9.0
INK: Final = "#33415c"
ACCENT: Final = "#0072b2"
ALARM: Final = "#c1121f"


def figure_of(height_in: float) -> tuple[Figure, Any]:
    """A figure as wide as the page, and its axes."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    style(axes)
    return figure, axes


def style(axes: Any) -> None:
    """Quiet grid and frame."""
    axes.grid(color="#e6e9ef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def legend_above(axes: Any) -> None:
    """Outside the data, so that it hides nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False, labelcolor=INK, fontsize=9)


def svg_of(figure: Figure) -> str:
    """The <svg> element alone, to stand inside HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
