"""The highest rate that a system carries within a TTFT objective (5.1), by a criterion of choice."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from asap_ray.errors import ConfigError
from asap_ray.evaluation.intervals import Interval, interval_of
from asap_ray.evaluation.points import Case, Outcome, Point
from asap_ray.evaluation.searches import Search

MIN_REQUESTS: Final = 20
"""No run of a search expects fewer: a rate below that is reported as 0."""

HINT_STRIDE: Final = 0.02
"""How far from another seed's answer a search looks first, as a share of it."""

GUESS_STRIDE: Final = 0.1
"""The same from a guess."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """Which number of a run must not exceed the objective: the mean, or a percentile."""

    name: str
    percentile: int | None  # None: the mean

    def value_s(self, outcome: Outcome) -> float:
        """That number."""
        return outcome.ttft_mean_s if self.percentile is None else outcome.percentile_s(self.percentile)


def criterion_of(text: str) -> Criterion:
    """`mean`, `p90`, or `attainment:0.9`: a share x within the objective means that percentile 100 x is.

    Raises:
        ConfigError: none of these; shares are whole per cents.
    """
    if text == "mean":
        return Criterion(text, None)
    kind, _, share = text.partition(":")
    try:
        percentile = 100 * float(share) if kind == "attainment" else float(int(text.removeprefix("p")))
    except ValueError:
        percentile = 0.0
    if not 1 <= percentile <= 100 or abs(percentile - round(percentile)) > 1e-9:
        raise ConfigError(
            f"criterion {text!r} must be mean, p1 to p100, or attainment:SHARE with a share of 0.01 to 1, "
            "in whole per cents"
        )
    return Criterion(text, round(percentile))


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSearch:
    """The highest rate of one system, on a grid of `resolution_rps`."""

    system: str
    case: Case
    duration_s: float
    slo_s: float
    resolution_rps: float
    limit_rps: float | None = None  # looked at no higher rate: an answer there means at least so much

    def over_seeds(
        self, seeds: Sequence[int], criteria: Sequence[Criterion], hint_rps: float
    ) -> Search[dict[str, list[float]]]:
        """The rate of each criterion and seed; 0 where even MIN_REQUESTS in a run miss it.

        `hint_rps` is a guess that the first seed starts from; the others start from the answer before.
        """
        found: dict[str, list[float]] = {criterion.name: [] for criterion in criteria}
        for seed in seeds:
            near_rps = hint_rps
            for criterion in criteria:
                before = found[criterion.name]
                start_rps = before[-1] if before else near_rps
                stride = (HINT_STRIDE if found[criteria[0].name] else GUESS_STRIDE) * start_rps
                near_rps = yield from self._highest(seed, criterion, start_rps, stride)
                before.append(near_rps)
        return found

    def over(self, rates: Sequence[float]) -> Interval:
        """The mean of some answers: at least so much, if one of them is the highest rate that is looked at."""
        found = interval_of(rates)
        is_limited = self.limit_rps is not None and max(rates) > self.limit_rps - self.resolution_rps
        return Interval(found.mean, None, "at least") if is_limited else found

    def _highest(self, seed: int, criterion: Criterion, start_rps: float, stride_rps: float) -> Search[float]:
        lowest = max(1, round(MIN_REQUESTS / self.duration_s / self.resolution_rps))
        highest = None if self.limit_rps is None else max(lowest, round(self.limit_rps / self.resolution_rps))
        start, stride = (round(rps / self.resolution_rps) for rps in (start_rps, stride_rps))
        steps = climb(lowest, start, stride, highest)
        place = next(steps)
        while True:
            rps = round(place * self.resolution_rps, 6)
            point = Point(system=self.system, case=self.case, rps=rps, duration_s=self.duration_s, seed=seed)
            outcome = yield point
            try:
                place = steps.send(criterion.value_s(outcome) <= self.slo_s)
            except StopIteration as end:
                return float(round(end.value * self.resolution_rps, 6))


def climb(lowest: int, start: int, stride: int, highest: int | None = None) -> Generator[int, bool, int]:
    """The highest integer that passes, where all up to some do and none above: strides that double, then bisection.

    Yields what to try and is sent whether it passed; returns 0 where `lowest` fails, and never tries above `highest`.
    """
    passed, failed = lowest - 1, None
    place, stride = max(lowest, start), max(1, stride)
    while (failed is None or failed - passed > 1) and passed != highest:
        place = place if highest is None else min(place, highest)
        if (yield place):
            passed = place
        else:
            failed = place
        if failed is None:
            place, stride = passed + stride, 2 * stride
        elif passed < lowest and failed > lowest:
            place, stride = max(lowest, failed - stride), 2 * stride
        else:
            place = (passed + failed) // 2
    return passed if passed >= lowest else 0
