"""The parts of the report, and how much is simulated for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.points import Case, paper_case
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.slo import criterion_of
from asap_ray.evaluation.sweep import QUICK_LIMIT, Sweep, SweepResult

Cell = str | int | float | Interval | None

MAIN: Final = ("asap", "paper", "strong", "chunked", "default")
ABLATED: Final = ("no_dual", "no_overlap", "no_super_kernel")
"""Systems: compared at every rate, and without one part of `paper`."""

SIMULATED: Final = "simulated"
PAPER: Final = "paper"
"""What a column's title says of its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, what to make of it, a table, and perhaps a picture."""

    name: str  # of its CSV file and its JSON key
    title: str
    text: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    figure: str = ""  # SVG


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is simulated."""

    sweep: Sweep  # of the systems that the paper and we compare
    sensitivity_s: float  # duration of each run of the other cases
    sensitivity_seeds: tuple[int, ...]
    resolution: float  # of their rates, as a share of each case's bound
    is_quick: bool  # fewer of those cases
    traces: Path  # where recorded traces may lie

    @property
    def ablations(self) -> Sweep:
        """Of the paper's system without one part: what 5.5 states, the rate by mean and TTFT at low load."""
        return replace(self.sweep, systems=ABLATED, rates=(1.0,), criteria=(criterion_of("mean"),))


Write = Callable[[Effort], Search[Section]]
"""A section: asks for the points it needs and returns itself. The report is a list of these."""


def full_effort(traces: Path) -> Effort:
    """Everything, as the paper did it: five minutes a run; five seeds. The other cases get three seeds of 60 s."""
    return Effort(
        sweep=Sweep(
            systems=MAIN,
            case=paper_case(),
            rates=(1.0, 4.0, 8.0, 12.0, 16.0, 20.0),
            seeds=(0, 1, 2, 3, 4),
            duration_s=300.0,
            slo_s=5.0,
            resolution_rps=0.25,
            criteria=(criterion_of("mean"), criterion_of("p99")),
        ),
        sensitivity_s=60.0,
        sensitivity_seeds=(0, 1, 2),
        resolution=0.02,
        is_quick=False,
        traces=traces,
    )


def quick_effort(traces: Path) -> Effort:
    """A look in under a minute: one seed, seconds a run. Short runs carry more than long ones."""
    full = full_effort(traces)
    sweep = replace(
        full.sweep, rates=(1.0, 4.0, 8.0), seeds=(0,), duration_s=15.0, resolution_rps=1.0, limit_of_bound=QUICK_LIMIT
    )
    return replace(full, sweep=sweep, sensitivity_s=10.0, sensitivity_seeds=(0,), resolution=0.1, is_quick=True)


def swept(sweep: Sweep) -> Search[SweepResult]:
    """All of a sweep, one point after another."""
    answers: list[Any] = []
    for search in sweep.searches():
        answers.append((yield from search))
    return sweep.result(answers)


def case_words(case: Case) -> str:
    """A case in a few words."""
    devices = f"D={case.dp}, T={case.tp}, E={case.ep}"
    return f"{case.model}, {devices}, {case.interconnect}, trace {case.trace}, experts {case.skew}"


def cell_text(cell: Cell) -> str:
    """A cell for people: three digits or so."""
    if isinstance(cell, Interval):
        return cell.text(2 if abs(cell.mean) < 100 else 0)
    if isinstance(cell, float):
        digits = next((digits for limit, digits in ((1, 3), (10, 2), (100, 1)) if abs(cell) < limit), 0)
        return f"{cell:,.{digits}f}"
    return "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def per_cent(new: float, old: float) -> float:
    """By how much `new` is below `old`, in per cent."""
    return 100 * (1 - new / old)


def columns(*names: str | Sequence[str]) -> tuple[str, ...]:
    """Titles; a pair is a name and the kind of its numbers."""
    return tuple(name if isinstance(name, str) else f"{name[0]} ({', '.join(name[1:])})" for name in names)
