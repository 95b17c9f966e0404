"""A section's table as CSV: a number a cell, so that a spreadsheet can count with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.section import Cell, Section

Plain = str | int | float | None


def csv_text(section: Section) -> str:
    """Titles and rows. A column of intervals becomes its means, and beside them what the table has of the rest:
    half-widths ("±"), and where a number is only known to be at least or at most so much ("side").
    """
    by_column = zip(section.columns, zip(*section.rows, strict=True), strict=True) if section.rows else ()
    table = [part for title, cells in by_column for part in _parts(title, cells)]
    text = io.StringIO(newline="")
    rows = zip(*(cells for _, cells in table), strict=True)
    csv.writer(text).writerows([[title for title, _ in table] or section.columns, *rows])
    return text.getvalue()


def _parts(title: str, cells: tuple[Cell, ...]) -> Iterator[tuple[str, list[Plain]]]:
    """A column, and the columns it needs beside it."""
    intervals = [cell if isinstance(cell, Interval) else None for cell in cells]
    yield title, [cell.mean if isinstance(cell, Interval) else cell for cell in cells]
    if any(each and each.half_width is not None for each in intervals):
        yield f"{title} ±", [each.half_width if each else None for each in intervals]
    if any(each and each.side for each in intervals):
        yield f"{title} side", [each.side if each else None for each in intervals]
