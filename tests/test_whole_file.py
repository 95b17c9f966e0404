"""A full disk for reports: one line that says so, and no half of a file in place of a whole one.

A limit on the size of files stands in for the disk; both fail in the middle of a write. It is of the whole process, so
it holds for the write alone: what pytest prints may go to a file too.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from asap_ray.errors import ConfigError
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.points import Outcome, Point, paper_case
from asap_ray.whole_file import whole_file, write_whole

ROOM = 4096


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond four kilobytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_report_before(tmp_path: Path) -> None:
    """It is said in one line, with the path; nothing else is left."""
    path = tmp_path / "report.json"
    write_whole(path, "before")
    with pytest.raises(ConfigError, match=r"cannot write .*report\.json: File too large"), full_disk():
        write_whole(path, "x" * 10 * ROOM)

    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report.json", "before")]


def test_whoever_fails_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """An error that is not the disk's goes on as it is."""

    def write() -> None:
        with whole_file(tmp_path / "trace.json") as file:
            file.write("[")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()

    assert list(tmp_path.iterdir()) == []


def test_a_full_device_is_not_replaced() -> None:
    """A device or a pipe has no place beside it; its disk is full for real."""
    with pytest.raises(ConfigError, match="cannot write /dev/full: No space left on device"):
        write_whole(Path("/dev/full"), "report")

    assert Path("/dev/full").is_char_device()


def test_a_link_stays_one(tmp_path: Path) -> None:
    """What it points to is written."""
    (tmp_path / "link").symlink_to(tmp_path / "report")
    write_whole(tmp_path / "link", "report")

    assert ((tmp_path / "report").read_text(), (tmp_path / "link").is_symlink()) == ("report", True)


def test_a_journal_keeps_what_it_had_before_the_disk_was_full(tmp_path: Path) -> None:
    """A sweep ends with one line; once there is room it goes on from the points that are whole."""
    points = [
        Point(system="asap", case=paper_case(), rps=float(rps), duration_s=1.0, seed=0) for rps in range(1, 2 + ROOM)
    ]
    outcome = Outcome(
        num_requests=1,
        ttft_mean_s=1.0,
        ttft_percentiles_s=(1.0,) * 100,
        attention_duty=0.5,
        moe_duty=0.5,
        buckets=(),
    )
    journal, kept = Journal(tmp_path / "journal"), []

    def sweep() -> None:
        for point in points:
            journal.put(point, outcome)
            kept.append(point)

    with pytest.raises(ConfigError, match=r"cannot write journal .*: File too large"), full_disk():
        sweep()

    again, num_kept = Journal(tmp_path / "journal"), len(kept)
    assert num_kept > 0
    assert [again.get(point) is not None for point in points[: num_kept + 1]] == [True] * num_kept + [False]
