"""The report: every section, from runs that were made up."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.cli import main
from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.report import SECTIONS, Report, write_report
from asap_ray.evaluation.searches import explore
from asap_ray.evaluation.section import Effort, cell_text, quick_effort
from asap_ray.evaluation.sections_sensitivity import losses
from asap_ray.evaluation.sensitivity_cases import RECORDINGS, trace_cases
from tests.evaluation.fakes import FakeWorkers, queueing

NOWHERE = Path("/nowhere")


def unlimited() -> Effort:
    """The few cases of a quick report, every rate."""
    effort = quick_effort(NOWHERE)
    return replace(effort, sweep=replace(effort.sweep, limit_of_bound=None))


def made(effort: Effort, directory: Path, workers: FakeWorkers) -> Report:
    """All sections of a world without a simulator."""
    sections = explore([write(effort) for write in SECTIONS], Journal(directory / "j"), workers.crew)
    return Report(command="asap-ray report <x>", date="2026-01-01", version="1", code="abc", sections=sections)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a quick report."""
    directory = tmp_path_factory.mktemp("report")
    effort = quick_effort(NOWHERE)
    write_report(made(effort, directory, queueing()), effort, directory)
    return directory


def test_page_has_every_section(written: Path) -> None:
    """In order, each with a table."""
    page = (written / "report.html").read_text()

    assert re.findall(r'<h2 id="(\w+)"', page) == [write.__name__ for write in SECTIONS]
    assert page.count("<table>") == len(SECTIONS)


def test_page_loads_nothing_from_elsewhere(written: Path) -> None:
    """No picture, style or script beside it; and text from outside is escaped."""
    page = (written / "report.html").read_text()

    assert not any(reference in page for reference in ('src="', "url(http", "<link", "<script"))
    assert "asap-ray report &lt;x&gt;" in page


def test_page_of_a_quick_report_says_so(written: Path) -> None:
    """Nobody should compare it with the paper."""
    assert "Quick: one seed" in (written / "report.html").read_text()


def test_json_has_the_tables_of_the_page(written: Path) -> None:
    """Every row has a cell a column."""
    sections = json.loads((written / "report.json").read_text())["sections"]

    assert list(sections) == [write.__name__ for write in SECTIONS]
    assert all(len(row) == len(each["columns"]) for each in sections.values() for row in each["rows"])


def test_every_table_is_a_csv_file(written: Path) -> None:
    """With its titles."""
    with (written / "ttft.csv").open() as file:
        rows = list(csv.reader(file))

    assert rows[0][:2] == ["RPS", "system"]
    assert {path.stem for path in written.glob("*.csv")} == {write.__name__ for write in SECTIONS}


def test_quoted_numbers_stand_beside_ours(written: Path) -> None:
    """20, 10.5 and 6.8 RPS of 5.2; a quarter of a second an RPS in the made-up world, so 20 of ours."""
    rows = json.loads((written / "report.json").read_text())["sections"]["throughput"]["rows"]
    paper = {row[0]: row[3] for row in rows}

    assert (paper["paper"], paper["chunked"], paper["default"], paper["strong"]) == (20.0, 10.5, 6.8, None)


def test_sections_share_their_points(tmp_path: Path) -> None:
    """Five sections read one sweep; none of its points is run twice."""
    workers = queueing()
    made(quick_effort(NOWHERE), tmp_path, workers)

    assert len(workers.asked) == len(set(workers.asked))


def test_absent_traces_are_named(written: Path) -> None:
    """They are left out, not forgotten."""
    text = json.loads((written / "report.json").read_text())["sections"]["traces"]["text"]

    assert all(name in text for name in RECORDINGS)
    assert len(trace_cases(quick_effort(NOWHERE))) == 3


def test_losses_are_the_cases_in_which_async_gains_nothing(tmp_path: Path) -> None:
    """All of them, where the synchronous system answers in half the time."""
    workers = FakeWorkers(lambda point: point.rps / (4 if point.system == "asap" else 8))
    (section,) = explore([losses(unlimited())], Journal(tmp_path / "j"), workers.crew)

    assert len(section.rows) == 7
    assert section.rows[0][-1].startswith("rate, 0.5")


def test_no_loss_where_both_carry_every_rate(tmp_path: Path) -> None:
    """A quick report stops above the bound: that both get there says nothing of either."""
    workers = FakeWorkers(lambda _: 1.0)
    (section,) = explore([losses(quick_effort(NOWHERE))], Journal(tmp_path / "j"), workers.crew)

    assert all("rate" not in str(row[-1]) for row in section.rows)
    assert "In 7 cases both carry the highest rate looked at" in section.text


def test_no_losses_where_async_always_gains(tmp_path: Path) -> None:
    """An empty table."""
    workers = FakeWorkers(lambda point: point.rps / (8 if point.system == "asap" else 4))
    (section,) = explore([losses(unlimited())], Journal(tmp_path / "j"), workers.crew)

    assert section.rows == []


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "-"),
        ("strong", "strong"),
        (32768, "32,768"),
        (0.12345, "0.123"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (Interval(20.0, 0.25), "20.00±0.25"),
    ],
)
def test_cells_have_as_many_digits_as_they_need(cell: str | int | float | Interval | None, text: str) -> None:
    """About three."""
    assert cell_text(cell) == text


def test_a_directory_that_cannot_be_written_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after twenty minutes."""
    monkeypatch.setattr(sys, "argv", ["asap-ray", "report", "--out", "/proc/x"])

    with pytest.raises(SystemExit):
        main()

    assert "cannot write the report to /proc/x" in capsys.readouterr().err
