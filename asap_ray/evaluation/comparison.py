"""The asynchronous and the best synchronous system in one case: rates and TTFT, and who is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asap_ray.evaluation.bound import Bound
from asap_ray.evaluation.intervals import Interval, Side, interval_of
from asap_ray.evaluation.points import Case, Point
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.section import Effort
from asap_ray.evaluation.slo import MIN_REQUESTS, SloSearch, criterion_of
from asap_ray.evaluation.sweep import case_bound, first_guess, limit_rps

ASYNC: Final = "asap"
SYNC: Final = "strong"
NEITHER: Final = "no difference"
UNKNOWN: Final = "not known"
LOW_LOAD: Final = 0.1
"""Of the bound: hardly anybody waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both systems, seed by seed, on the same requests."""

    case: Case
    bound: Bound
    async_rps: Interval  # within the objective, by mean
    sync_rps: Interval
    rate_margin: Interval  # of the asynchronous one, as a share of the higher rate
    async_low_s: Interval  # mean TTFT at low load
    sync_low_s: Interval
    low_margin: Interval  # of the asynchronous one, as a share of the longer TTFT

    @property
    def gain(self) -> Interval | None:
        """Ratio of rates; None where the synchronous system has none, or both may carry more than was looked at."""
        if not self.sync_rps.mean or (self.async_rps.side and self.sync_rps.side):
            return None
        side: Side = "at most" if self.sync_rps.side else self.async_rps.side
        return Interval(self.async_rps.mean / self.sync_rps.mean, None, side)

    @property
    def rate_lead(self) -> str:
        """Who carries more: ASYNC, SYNC, NEITHER or UNKNOWN, and whether one seed says so."""
        return UNKNOWN if self.async_rps.side and self.sync_rps.side else lead(self.rate_margin)

    @property
    def low_lead(self) -> str:
        """Who answers sooner at low load, in the same words."""
        return lead(self.low_margin)


def lead(margin: Interval) -> str:
    """Whom a margin of the asynchronous system puts ahead."""
    ahead = NEITHER if not margin.mean else ASYNC if margin.mean > 0 else SYNC
    if margin.half_width is None:
        return f"{ahead}, one seed"
    return ahead if margin.excludes(0.0) else NEITHER


def compare(case: Case, effort: Effort) -> Search[Comparison]:
    """Both systems, the same requests."""
    bound = case_bound(case)
    rates, low_s, intervals = [], [], []
    for system in (ASYNC, SYNC):
        search = SloSearch(
            system=system,
            case=case,
            duration_s=effort.sensitivity_s,
            slo_s=effort.sweep.slo_s,
            resolution_rps=effort.resolution * bound.rps,
            limit_rps=limit_rps(effort.sweep.limit_of_bound, bound),
        )
        criteria, seeds = [criterion_of("mean")], effort.sensitivity_seeds
        found = yield from search.over_seeds(seeds, criteria, first_guess(system, bound))
        rates.append(found["mean"])
        intervals.append(search.over(found["mean"]))
        low_s.append((yield from _low_s(system, case, bound, effort)))
    return Comparison(
        case=case,
        bound=bound,
        async_rps=intervals[0],
        sync_rps=intervals[1],
        rate_margin=_margin(*rates),
        async_low_s=interval_of(low_s[0]),
        sync_low_s=interval_of(low_s[1]),
        low_margin=_margin(low_s[1], low_s[0]),
    )


def _low_s(system: str, case: Case, bound: Bound, effort: Effort) -> Search[list[float]]:
    """Mean TTFT at low load, of each seed."""
    rps = LOW_LOAD * bound.rps
    duration_s = max(effort.sensitivity_s, MIN_REQUESTS / rps)
    point = Point(system=system, case=case, rps=rps, duration_s=duration_s, seed=0)
    means_s = []
    for seed in effort.sensitivity_seeds:
        outcome = yield replace(point, seed=seed)
        means_s.append(outcome.ttft_mean_s)
    return means_s


def _margin(ones: Sequence[float], others: Sequence[float]) -> Interval:
    """By how much each one exceeds its other, as a share of the larger: seeds differ in level more than in shares."""
    pairs = zip(ones, others, strict=True)
    return interval_of([(one - other) / max(one, other) if one != other else 0.0 for one, other in pairs])


def compare_all(cases: Iterable[Case], effort: Effort) -> Search[list[Comparison]]:
    """One case after another."""
    found = []
    for case in cases:
        found.append((yield from compare(case, effort)))
    return found
