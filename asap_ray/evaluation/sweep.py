"""TTFT against rate, and the rate within the objective, of several systems on the same seeds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from asap_ray import __version__
from asap_ray.errors import ConfigError
from asap_ray.evaluation.bound import Bound, bound_of
from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.journal import code_version
from asap_ray.evaluation.points import Case, Outcome, Point
from asap_ray.evaluation.searches import Search, single
from asap_ray.evaluation.slo import Criterion, SloSearch
from asap_ray.evaluation.systems import system_of
from asap_ray.workload.lengths import PRESETS
from asap_ray.workload.trace import check_positive

BOUND_REQUESTS: Final = 100_000
"""Drawn for the bound of a length preset."""

PAPER_SYSTEMS: Final = (
    "asap",
    "paper",
    "no_dual",
    "no_overlap",
    "no_super_kernel",
    "strong",
    "chunked",
    "default",
)
"""Everything section 5 compares, the dearest to simulate first."""

FIRST_GUESS: Final = {"default": 0.3, "chunked": 0.45}
"""Where the search for a system's rate starts, as a share of the resource bound; it ends where it must anyway."""

OTHER_GUESS: Final = 0.85

QUICK_LIMIT: Final = 1.25
"""Of the bound: highest rate that a quick sweep or report looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to run. All systems see the same seeds, and so the same requests."""

    systems: tuple[str, ...]
    case: Case
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    duration_s: float
    slo_s: float
    resolution_rps: float
    criteria: tuple[Criterion, ...]
    limit_of_bound: float | None = None  # no rate above this share of the bound is looked at

    def __post_init__(self) -> None:
        for system in self.systems:
            system_of(system)
        for rps in self.rates:
            check_positive("rate", rps)
        names = [criterion.name for criterion in self.criteria]
        for what, values in (("system", self.systems), ("rate", self.rates), ("criterion", names)):
            if twice := {each for each in values if list(values).count(each) > 1}:
                raise ConfigError(f"{what} {twice.pop()!r} is given twice")
        check_positive("duration_s", self.duration_s)
        check_positive("slo_s", self.slo_s)
        check_positive("resolution_rps", self.resolution_rps)

    def bound(self) -> Bound:
        """The resource bound of the asynchronous instance for this case's prompts."""
        return case_bound(self.case)

    def searches(self) -> list[Search[Any]]:
        """First the rates of all systems within the objective, then TTFT at each rate."""
        return [
            *(
                self.search(system).over_seeds(self.seeds, self.criteria, first_guess(system, self.bound()))
                for system in self.systems
            ),
            *(single(point) for point in self.points()),
        ]

    def points(self) -> list[Point]:
        """Every system, rate and seed."""
        return [
            Point(system=system, case=self.case, rps=rps, duration_s=self.duration_s, seed=seed)
            for system in self.systems
            for rps in self.rates
            for seed in self.seeds
        ]

    def result(self, answers: Sequence[Any]) -> SweepResult:
        """Put the answers of `searches` together."""
        num_systems = len(self.systems)
        return SweepResult(
            sweep=self,
            slo_rps=dict(zip(self.systems, answers[:num_systems], strict=True)),
            outcomes=dict(zip(self.points(), answers[num_systems:], strict=True)),
        )

    def search(self, system: str) -> SloSearch:
        """For a system's rate within the objective."""
        return SloSearch(
            system=system,
            case=self.case,
            duration_s=self.duration_s,
            slo_s=self.slo_s,
            resolution_rps=self.resolution_rps,
            limit_rps=limit_rps(self.limit_of_bound, self.bound()),
        )


def quickened(sweep: Sweep) -> Sweep:
    """A look at the same comparison in under a minute: one seed, short runs.

    A short run carries any rate, for no queue has the time to grow; so none far above the bound is looked at.
    """
    return replace(
        sweep,
        rates=(4.0, 12.0, 20.0),
        seeds=(0,),
        duration_s=30.0,
        resolution_rps=0.5,
        limit_of_bound=QUICK_LIMIT,
    )


def limit_rps(limit_of_bound: float | None, bound: Bound) -> float | None:
    """The highest rate to look at."""
    return None if limit_of_bound is None else limit_of_bound * bound.rps


def first_guess(system: str, bound: Bound) -> float:
    """Where to start, RPS."""
    return FIRST_GUESS.get(system, OTHER_GUESS) * bound.rps


@functools.cache
def case_bound(case: Case) -> Bound:
    """The resource bound for a case's prompts."""
    if case.trace in PRESETS:
        lengths = PRESETS[case.trace].draw(BOUND_REQUESTS, seed=0)
    else:
        lengths = [request.input_length for request in case.recording()]
    return bound_of(case.setup(), lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What came out."""

    sweep: Sweep
    slo_rps: dict[str, dict[str, list[float]]]  # system -> criterion -> one a seed
    outcomes: dict[Point, Outcome] = field(repr=False)

    def over_seeds(self, system: str, rps: float) -> list[Outcome]:
        """The outcomes of one system at one rate."""
        return [outcome for point, outcome in self.outcomes.items() if (point.system, point.rps) == (system, rps)]

    def slo(self, system: str, criterion: str) -> Interval:
        """The rate within the objective."""
        return self.sweep.search(system).over(self.slo_rps[system][criterion])

    def to_json(self) -> dict[str, Any]:
        """For other programs: `rows`, `slo_rps` (mean over seeds), and how they were got."""
        settings = asdict(self.sweep)
        settings["criteria"] = [criterion.name for criterion in self.sweep.criteria]
        return {
            "kind": "simulated",
            "version": __version__,
            "code": code_version(),
            "settings": settings,
            "resource_bound_rps": self.sweep.bound().rps,
            "rows": [_row(point, outcome) for point, outcome in self.outcomes.items()],
            "slo_rps": {
                system: {name: sum(rates) / len(rates) for name, rates in found.items()}
                for system, found in self.slo_rps.items()
            },
            "slo_rps_by_seed": self.slo_rps,
            "slo_rps_is_at_least": {
                system: {name: bool(self.slo(system, name).side) for name in found}
                for system, found in self.slo_rps.items()
            },
        }


def _row(point: Point, outcome: Outcome) -> dict[str, Any]:
    return {
        "system": point.system,
        "rps": point.rps,
        "seed": point.seed,
        "ttft_mean_s": outcome.ttft_mean_s,
        "ttft_p50_s": outcome.percentile_s(50),
        "ttft_p99_s": outcome.percentile_s(99),
    }
