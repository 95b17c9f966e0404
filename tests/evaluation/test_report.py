"""The report: every section, from runs that were made up."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from asap_ray.cli import main
from asap_ray.evaluation.intervals import Interval
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.report import SECTIONS, Report, make_report, write_report
from asap_ray.evaluation.searches import explore
from asap_ray.evaluation.section import Effort, Section, cell_text, quick_effort
from asap_ray.evaluation.section_csv import csv_text
from asap_ray.evaluation.sections_sensitivity import losses
from asap_ray.evaluation.sensitivity_cases import RECORDINGS, trace_cases
from tests.evaluation.fakes import FakeWorkers, queueing

NOWHERE = Path("/nowhere")


def unlimited() -> Effort:
    """The few cases of a quick report, three seeds, every rate."""
    effort = quick_effort(NOWHERE)
    return replace(effort, sensitivity_seeds=(0, 1, 2), sweep=replace(effort.sweep, limit_of_bound=None))


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


def test_csv_has_a_number_a_cell() -> None:
    """Mean and half-width are columns of their own; labels and what the paper says stay as they are."""
    section = Section(
        name="x",
        title="",
        text="",
        columns=("system", "RPS (simulated)", "TTFT", "RPS (paper)"),
        rows=[
            ("a", Interval(20.0, 0.25), 0.123456789, "18.9 (from +6 %)"),
            ("b", Interval(29.5, None, "at least"), None, 6.8),
        ],
    )

    assert list(csv.reader(csv_text(section).splitlines())) == [
        ["system", "RPS (simulated)", "RPS (simulated) ±", "RPS (simulated) side", "TTFT", "RPS (paper)"],
        ["a", "20.0", "0.25", "", "0.123456789", "18.9 (from +6 %)"],
        ["b", "29.5", "", "at least", "", "6.8"],
    ]


def test_a_report_that_is_interrupted_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page, JSON and tables change when the new ones are whole, and not when a run starts."""
    (tmp_path / "report.html").write_text("before")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asap_ray.evaluation.report.run_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_report(quick_effort(NOWHERE), "asap-ray report", tmp_path, 1, Console())

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "before")]


def test_parts_of_a_ttft_are_not_negative(written: Path) -> None:
    """Kernel, queue, wait, and what lies outside the layers."""
    rows = json.loads((written / "report.json").read_text())["sections"]["split"]["rows"]

    assert min(part for row in rows for part in row[4:8]) >= 0


def test_what_the_paper_does_not_state_is_not_quoted_as_a_number(written: Path) -> None:
    """Of the super kernel it states a gain of 6 %; of the overlap at low load that it is negligible."""
    sections = json.loads((written / "report.json").read_text())["sections"]
    rates = {row[0]: row[3] for row in sections["throughput"]["rows"]}
    low = {row[0]: row[-1] for row in sections["ablations"]["rows"]}

    assert (rates["no_super_kernel"], low["no_overlap"]) == ("18.9 (from +6 %)", "negligible")


def test_a_rate_at_the_limit_of_a_quick_look_is_at_least_so_much(tmp_path: Path) -> None:
    """In the table of rates and of ablations, where nothing is gained for certain."""
    effort = quick_effort(NOWHERE)
    made_up = made(effort, tmp_path, FakeWorkers(lambda _: 1.0))
    sections = {section.name: section for section in made_up.sections}

    assert {cell_text(row[1]).startswith("at least 30") for row in sections["throughput"].rows} == {True}
    assert {(cell_text(row[1]), row[3]) for row in sections["ablations"].rows} == {("at least 30.00", None)}


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


def test_losses_are_the_cases_in_which_async_is_not_ahead(tmp_path: Path) -> None:
    """All of them, where the synchronous system answers in half the time on every seed."""
    workers = FakeWorkers(lambda point: point.rps / (4 if point.system == "asap" else 8))
    (section,) = explore([losses(unlimited())], Journal(tmp_path / "j"), workers.crew)

    assert len(section.rows) == 7
    assert section.rows[0][-1] == "does not pay in rate; does not pay in TTFT at low load"
    assert "Ahead in rate, of 7 cases: strong in 7." in section.text
    assert "strong is at or above asap by its mean in 7 of them" in section.text


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    """It is named as one seed wherever it puts a system ahead."""
    effort = replace(unlimited(), sensitivity_seeds=(0,))
    workers = FakeWorkers(lambda point: point.rps / (4 if point.system == "asap" else 8))
    (section,) = explore([losses(effort)], Journal(tmp_path / "j"), workers.crew)

    assert {row[5] for row in section.rows} == {"strong, one seed"}


def test_seeds_that_disagree_put_nobody_ahead(tmp_path: Path) -> None:
    """Strong is ahead on two seeds of three, far behind on the third."""
    factors = (7, 7, 1)
    workers = FakeWorkers(lambda point: point.rps / (4 if point.system == "asap" else factors[point.seed]))
    (section,) = explore([losses(unlimited())], Journal(tmp_path / "j"), workers.crew)

    assert {row[-1] for row in section.rows} == {"no difference in rate; no difference in TTFT at low load"}


def test_no_loss_where_both_carry_every_rate(tmp_path: Path) -> None:
    """A quick report stops above the bound: that both get there says nothing of either."""
    workers = FakeWorkers(lambda _: 1.0)
    (section,) = explore([losses(quick_effort(NOWHERE))], Journal(tmp_path / "j"), workers.crew)

    assert {(row[2].text(0).split()[:2] == ["at", "least"], row[5]) for row in section.rows} == {(True, "not known")}
    assert "not known in 7" in section.text


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
