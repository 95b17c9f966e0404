"""The planner: closed forms rank every split of the devices, simulation judges the most promising ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from asap_ray.errors import ConfigError
from asap_ray.evaluation.plan_candidates import ASYNC, SYNC, Candidate, Objective, PlannedCase, candidate_of, candidates
from asap_ray.evaluation.points import Outcome, Point
from asap_ray.evaluation.searches import Search, single
from asap_ray.evaluation.slo import MIN_REQUESTS, SloSearch

NUM_SYNC: Final = 2
"""Synchronous splits that are simulated: they differ in T alone."""

TARGET_FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
"""Batch targets that are tried, times where the MoE stage stops being memory bound (3.3.1)."""

SOLO_SHARES: Final = (2, 4, 8)
"""Thresholds above which a batch runs alone, as parts of the longest batch; a half is the most there can be."""

Explore = Callable[[Sequence[Search[Any]]], list[Any]]
"""Answers searches, such as `searches.run_all` with its journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be planned."""

    case: PlannedCase  # its degrees are what is searched for
    num_devices: int
    objective: Objective
    rate_rps: float | None  # the load to carry; None: half of what the best can
    num_simulated: int  # asynchronous splits that are simulated
    seeds: tuple[int, ...]
    duration_s: float
    resolution_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A candidate that was simulated: means over the seeds."""

    candidate: Candidate
    slo_rps: float  # at most its bound
    ttft_mean_s: float  # at the plan's load
    ttft_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: simulated candidates, best first; the others, most promising first; what memory rules out."""

    question: Question
    load_rps: float
    rows: tuple[Planned, ...]
    others: tuple[Candidate, ...]
    ruled_out: tuple[Candidate, ...]

    @property
    def best_async(self) -> Planned:
        """The best that `asap-ray serve` runs."""
        return next(row for row in self.rows if row.candidate.system == ASYNC)

    @property
    def kept_out(self) -> Candidate | None:
        """The asynchronous split that promises most, if memory rules it out."""
        fitting = [candidate.estimate_rps for candidate in self.fitting if candidate.system == ASYNC]
        too_large = [candidate for candidate in self.ruled_out if candidate.system == ASYNC]
        first = max(too_large, key=lambda candidate: candidate.estimate_rps, default=None)
        return first if first and first.estimate_rps > max(fitting) else None

    @property
    def fitting(self) -> list[Candidate]:
        """What memory does not rule out."""
        return [*(row.candidate for row in self.rows), *self.others]


def make_plan(question: Question, explore: Explore) -> Plan:
    """Rank, simulate, refine the best asynchronous split's limits, and compare at one load.

    Raises:
        ConfigError: nothing fits, and the text has the arithmetic of what comes closest; or nothing holds the
            objective under any load.
    """
    ranked = candidates(question.case, question.num_devices, question.objective)
    fitting = [candidate for candidate in ranked if candidate.fits]
    if not any(candidate.system == ASYNC for candidate in fitting):
        raise ConfigError(_refusal(question, ranked))
    judged = _judge(question, _shortlist(fitting, question.num_simulated), explore)
    best = max((row for row in judged if row[0].system == ASYNC), key=lambda row: row[1])[0]
    judged += _judge(question, _limits(best, question.objective), explore)
    load_rps = question.rate_rps or _half(question, judged)
    rows = _at_load(question, judged, load_rps, explore)
    splits = {candidate.text() for candidate, _ in judged}
    return Plan(
        question=question,
        load_rps=load_rps,
        rows=tuple(sorted(rows, key=lambda row: (-row.slo_rps, row.ttft_mean_s))),
        others=tuple(candidate for candidate in fitting if candidate.text() not in splits),
        ruled_out=tuple(candidate for candidate in ranked if not candidate.fits),
    )


def _refusal(question: Question, ranked: Sequence[Candidate]) -> str:
    """Why no asynchronous split fits, by the one that comes closest."""
    splits = [candidate for candidate in ranked if candidate.system == ASYNC]
    closest = min(splits, key=lambda candidate: candidate.fullest.share)
    sync = next((candidate for candidate in ranked if candidate.system == SYNC and candidate.fits), None)
    also = f"; a synchronous system fits ({sync.text()}: {sync.fullest.text()})" if sync else ""
    return (
        f"{question.case.model} fits no split of {question.num_devices} {question.case.hardware}; "
        f"closest is {closest.text()}: {closest.fullest.text()}{also}"
    )


def _shortlist(fitting: Sequence[Candidate], num_async: int) -> list[Candidate]:
    """The best of each T first: closed forms hardly tell them apart; then the best of all. And a few with barriers."""

    def turn(candidate: Candidate) -> tuple[bool, float]:
        degree = [other for other in fitting if (other.system, other.case.tp) == (ASYNC, candidate.case.tp)]
        return candidate is not degree[0], -candidate.estimate_rps

    asynchronous = sorted((candidate for candidate in fitting if candidate.system == ASYNC), key=turn)
    synchronous = [candidate for candidate in fitting if candidate.system == SYNC]
    return asynchronous[:num_async] + synchronous[:NUM_SYNC]


def _limits(best: Candidate, objective: Objective) -> list[Candidate]:
    """The same split with other batch targets, and with other thresholds for a batch to run alone."""
    prefill = best.case.setup().prefill
    targets = (round(factor * prefill.inflection_tokens) for factor in TARGET_FACTORS)
    cases = [replace(best.case, inflection_tokens=min(target, prefill.solo_tokens)) for target in targets]
    cases += [
        replace(best.case, solo_tokens=max(prefill.max_tokens // part, prefill.inflection_tokens))
        for part in SOLO_SHARES
    ]
    tried = {best.case.setup().prefill}
    different = []
    for case in cases:
        if case.setup().prefill not in tried:
            tried.add(case.setup().prefill)
            different.append(candidate_of(ASYNC, case, objective))
    return different


def _judge(question: Question, chosen: Sequence[Candidate], explore: Explore) -> list[tuple[Candidate, float]]:
    """The rate within the objective of each."""
    return list(zip(chosen, explore([_rate(question, candidate) for candidate in chosen]), strict=True))


def _rate(question: Question, candidate: Candidate) -> Search[float]:
    """Mean over the seeds; no more than the bound, although a run can carry more and end with a queue."""
    criterion, resolution_rps = question.objective.criterion, question.resolution_rps
    most_rps = round(candidate.bound_rps // resolution_rps * resolution_rps, 6)
    if most_rps * question.duration_s < MIN_REQUESTS:
        return 0.0
    search = SloSearch(
        system=candidate.system,
        case=candidate.case,
        duration_s=question.duration_s,
        slo_s=question.objective.slo_s,
        resolution_rps=resolution_rps,
    )
    rates = []
    for seed in question.seeds:
        outcome = yield _point(question, candidate, most_rps, seed)
        if criterion.value_s(outcome) <= question.objective.slo_s:
            rates.append(most_rps)
        else:
            found = yield from search.over_seeds((seed,), (criterion,), candidate.estimate_rps)
            rates.append(min(most_rps, found[criterion.name][0]))
    return sum(rates) / len(rates)


def _point(question: Question, candidate: Candidate, rps: float, seed: int) -> Point:
    return Point(system=candidate.system, case=candidate.case, rps=rps, duration_s=question.duration_s, seed=seed)


def _half(question: Question, judged: Sequence[tuple[Candidate, float]]) -> float:
    objective, best_rps = question.objective, max(slo_rps for _, slo_rps in judged)
    most_rps = max(candidate.bound_rps for candidate, _ in judged)
    if most_rps < question.resolution_rps or most_rps * question.duration_s < MIN_REQUESTS:
        raise ConfigError(
            f"at {most_rps:.1f} RPS, the highest bound, runs of duration={question.duration_s:g} s on a grid of "
            f"resolution={question.resolution_rps:g} RPS have fewer than {MIN_REQUESTS} requests; nothing was judged"
        )
    if not best_rps:
        raise ConfigError(
            f"no split of the devices holds {objective.criterion.name} TTFT within {objective.slo_s:g} s at any rate"
        )
    return best_rps / 2


def _at_load(
    question: Question, judged: Sequence[tuple[Candidate, float]], load_rps: float, explore: Explore
) -> list[Planned]:
    """TTFT of each at one load, so that they can be compared."""
    points = [_point(question, candidate, load_rps, seed) for candidate, _ in judged for seed in question.seeds]
    outcomes: list[Outcome] = explore([single(point) for point in points])
    num_seeds = len(question.seeds)
    rows = []
    for index, (candidate, slo_rps) in enumerate(judged):
        own = outcomes[index * num_seeds : (index + 1) * num_seeds]
        rows.append(
            Planned(
                candidate=candidate,
                slo_rps=slo_rps,
                ttft_mean_s=sum(outcome.ttft_mean_s for outcome in own) / num_seeds,
                ttft_p99_s=sum(outcome.percentile_s(99) for outcome in own) / num_seeds,
            )
        )
    return rows
