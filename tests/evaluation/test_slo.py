"""The search for the highest rate within an objective."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.points import Point, paper_case
from asap_ray.evaluation.searches import explore
from asap_ray.evaluation.slo import SloSearch, climb, criterion_of
from tests.evaluation.fakes import FakeWorkers, outcome, queueing


def climbed(threshold: int, lowest: int, start: int, stride: int, highest: int | None = None) -> tuple[int, list[int]]:
    """The answer where everything up to `threshold` passes, and what was tried."""
    steps = climb(lowest, start, stride, highest)
    tried = [next(steps)]
    while len(tried) < 100:
        try:
            tried.append(steps.send(tried[-1] <= threshold))
        except StopIteration as end:
            return end.value, tried
    raise AssertionError(tried)


@given(
    threshold=st.integers(1, 500), lowest=st.integers(1, 500), start=st.integers(-5, 500), stride=st.integers(-5, 100)
)
def test_climb_finds_the_highest_that_passes(threshold: int, lowest: int, start: int, stride: int) -> None:
    """Wherever it starts; 0 where even the lowest fails."""
    found, _ = climbed(threshold, lowest, start, stride)

    assert found == (threshold if threshold >= lowest else 0)


@given(threshold=st.integers(1, 500), highest=st.integers(1, 500), start=st.integers(1, 500))
def test_climb_tries_nothing_above_the_highest(threshold: int, highest: int, start: int) -> None:
    """And answers with it where it passes."""
    found, tried = climbed(threshold, 1, start, 3, highest)

    assert (max(tried) <= highest, found) == (True, min(threshold, highest))


def test_a_good_guess_saves_trials() -> None:
    """Two, where the guess is the answer."""
    assert climbed(threshold=200, lowest=1, start=200, stride=1) == (200, [200, 201])


def searched(tmp_path: Path, workers: FakeWorkers, resolution_rps: float, criteria: str) -> dict[str, list[float]]:
    """The rates of asap on two seeds."""
    search = SloSearch(
        system="asap", case=paper_case(), duration_s=300.0, slo_s=5.0, resolution_rps=resolution_rps
    ).over_seeds((0, 1), [criterion_of(name) for name in criteria.split(",")], hint_rps=12.0)
    (found,) = explore([search], Journal(tmp_path / "journal.jsonl"), workers.crew)
    return found


def test_rate_within_the_objective_by_mean_and_p99(tmp_path: Path) -> None:
    """TTFT of rps / 4 is 5 s at 20 RPS; its 99th percentile is three times that, so at 6.6 on a grid of 0.1."""
    assert searched(tmp_path, queueing(), 0.1, "mean,p99") == {"mean": [20.0, 20.0], "p99": [6.6, 6.6]}


def test_each_seed_is_searched_on_its_own(tmp_path: Path) -> None:
    """An interval over seeds needs one answer a seed."""
    workers = FakeWorkers(lambda point: point.rps / (4 + point.seed))

    assert searched(tmp_path, workers, 0.5, "mean") == {"mean": [20.0, 25.0]}


def test_no_point_is_run_twice(tmp_path: Path) -> None:
    """Criteria and seeds share what they can."""
    workers = queueing()
    searched(tmp_path, workers, 0.1, "mean,p99,p50")

    assert len(workers.asked) == len(set(workers.asked))


def test_a_system_that_never_meets_it_has_rate_zero(tmp_path: Path) -> None:
    """No run of a handful of requests is asked for to prove it."""
    workers = FakeWorkers(lambda _: 9.0)

    assert searched(tmp_path, workers, 0.1, "mean") == {"mean": [0.0, 0.0]}
    assert min(point.rps for point in workers.asked) * 300 >= 20


@pytest.mark.parametrize(
    ("name", "value_s"), [("mean", 1.0), ("p50", 1.0), ("p99", 3.0), ("attainment:0.98", 1.0), ("attainment:0.99", 3.0)]
)
def test_criterion_is_a_number_of_the_run(name: str, value_s: float) -> None:
    """98 of 100 requests take 1 s, two take 3 s: a share within the objective is a percentile within it."""
    assert criterion_of(name).value_s(outcome(1.0)) == value_s


@pytest.mark.parametrize(
    "name",
    [
        "median",
        "p0",
        "p101",
        "p99.9",
        "attainment",
        "attainment:2",
        "attainment:inf",
        "attainment:0.985",
        "attainment:x",
        "",
    ],
)
def test_unknown_criterion_is_refused(name: str) -> None:
    """With what it may be."""
    with pytest.raises(ConfigError, match="must be mean, p1 to p100, or attainment:SHARE"):
        criterion_of(name)


def test_searches_of_one_point_share_its_run(tmp_path: Path) -> None:
    """Two searches that want the same point at the same time wait for one run."""
    workers = queueing()
    searches = [
        SloSearch(system="asap", case=paper_case(), duration_s=300.0, slo_s=5.0, resolution_rps=1.0).over_seeds(
            (0,), [criterion_of("mean")], hint_rps=12.0
        )
        for _ in range(2)
    ]
    answers = explore(searches, Journal(tmp_path / "journal.jsonl"), workers.crew)

    assert answers == [{"mean": [20.0]}] * 2
    assert len(workers.asked) == len(set(workers.asked))


def test_watch_hears_of_every_new_point(tmp_path: Path) -> None:
    """And of how many searches have ended, and how many points are new."""
    heard: list[tuple[int, int]] = []
    search = SloSearch(system="asap", case=paper_case(), duration_s=300.0, slo_s=5.0, resolution_rps=1.0).over_seeds(
        (0,), [criterion_of("mean")], hint_rps=20.0
    )
    workers = queueing()
    explore([search], Journal(tmp_path / "journal.jsonl"), workers.crew, lambda *counts: heard.append(counts))

    assert (len(heard), heard[-1]) == (len(workers.asked), (1, len(workers.asked)))


def test_a_failed_point_ends_the_exploration(tmp_path: Path) -> None:
    """Its error is the caller's."""

    def refuse(point: Point) -> float:
        raise ConfigError(f"no {point.system}")

    with pytest.raises(ConfigError, match="no asap"):
        searched(tmp_path, FakeWorkers(refuse), 1.0, "mean")
