"""Finished points survive whatever ends a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.evaluation.journal import Journal, key_of
from asap_ray.evaluation.searches import explore, single
from tests.evaluation.fakes import outcome, point, queueing


def test_resumed_sweep_runs_only_what_is_missing(tmp_path: Path) -> None:
    """Two of three points are in the journal of an earlier process."""
    points = [point(seed=seed) for seed in range(3)]
    explore([single(each) for each in points[:2]], Journal(tmp_path / "j"), queueing().crew)
    resumed = queueing()
    answers = explore([single(each) for each in points], Journal(tmp_path / "j"), resumed.crew)

    assert resumed.asked == points[2:]
    assert answers == [outcome(1.0)] * 3


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    """A process killed while writing leaves one; the lines before it count, and the next one is whole."""
    journal = Journal(tmp_path / "j")
    journal.put(point(seed=0), outcome(1.0))
    with (tmp_path / "j").open("a") as file:
        file.write('{"key": "12')
    reopened = Journal(tmp_path / "j")
    reopened.put(point(seed=1), outcome(2.0))

    again = Journal(tmp_path / "j")
    assert [again.get(point(seed=seed)) for seed in range(3)] == [outcome(1.0), outcome(2.0), None]


def test_a_point_is_on_disk_at_once(tmp_path: Path) -> None:
    """Nothing has to be closed."""
    Journal(tmp_path / "j").put(point(), outcome(1.0))

    assert (tmp_path / "j").read_text().count("\n") == 1


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    """With its line."""
    (tmp_path / "j").write_text("{}\nhello\n")

    with pytest.raises(ConfigError, match=r"j:1: not a line of a journal"):
        Journal(tmp_path / "j")


def test_a_journal_that_cannot_be_written_is_refused() -> None:
    """Before anything is run."""
    with pytest.raises(ConfigError, match="cannot use journal /proc/x/j"):
        Journal(Path("/proc/x/j"))


def test_every_setting_is_part_of_the_key() -> None:
    """A point of another seed, rate, duration, system or case is another point."""
    one = point()
    others = [
        replace(one, seed=1),
        replace(one, rps=5.0),
        replace(one, duration_s=60.0),
        replace(one, system="strong"),
        replace(one, case=replace(one.case, skew="zipf:0.5")),
    ]

    assert len({key_of(each) for each in [one, *others]}) == 6


def test_content_of_a_trace_file_is_part_of_the_key(tmp_path: Path) -> None:
    """Another trace under another name has another key even with the same settings."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text(path.name)
    one = point()

    assert len({key_of(replace(one, case=replace(one.case, trace=str(path)))) for path in paths}) == 2
