"""The sweep: what it asks for, and what it writes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asap_ray.cli import main
from asap_ray.errors import ConfigError
from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.points import paper_case
from asap_ray.evaluation.searches import explore
from asap_ray.evaluation.slo import criterion_of
from asap_ray.evaluation.sweep import Sweep, SweepResult, quickened
from asap_ray.evaluation.sweep_report import tables, write_json
from tests.evaluation.fakes import FakeWorkers, queueing

SWEEP = Sweep(
    systems=("asap", "no_overlap"),
    case=paper_case(),
    rates=(4.0, 8.0),
    seeds=(0, 1, 2),
    duration_s=300.0,
    slo_s=5.0,
    resolution_rps=0.1,
    criteria=(criterion_of("mean"), criterion_of("p99")),
)


@pytest.fixture
def result(tmp_path: Path) -> SweepResult:
    """Of a world in which TTFT is a quarter of the rate, or half of it."""
    return SWEEP.result(explore(SWEEP.searches(), Journal(tmp_path / "j"), queueing().crew))


def test_json_has_a_row_of_every_run(result: SweepResult, tmp_path: Path) -> None:
    """With the keys that the issue names, and no other."""
    write_json(tmp_path / "sweep.json", result)
    rows = json.loads((tmp_path / "sweep.json").read_text())["rows"]

    assert {(row["system"], row["rps"], row["seed"]) for row in rows} == {
        (system, rps, seed) for system in SWEEP.systems for rps in SWEEP.rates for seed in SWEEP.seeds
    }
    assert rows[0] == {
        "system": "asap",
        "rps": 4.0,
        "seed": 0,
        "ttft_mean_s": 1.0,
        "ttft_p50_s": 1.0,
        "ttft_p99_s": 3.0,
    }


@pytest.mark.parametrize(
    "twice", [{"systems": ("asap", "asap")}, {"rates": (4.0, 4.0)}, {"criteria": (criterion_of("mean"),) * 2}]
)
def test_nothing_is_swept_twice(twice: dict[str, Any]) -> None:
    """A criterion given twice would count each seed twice, and halve the interval."""
    with pytest.raises(ConfigError, match="is given twice"):
        replace(SWEEP, **twice)


def test_json_has_the_rates_within_the_objective(result: SweepResult, tmp_path: Path) -> None:
    """By system and criterion; and says that they are simulated, with the bound."""
    write_json(tmp_path / "sweep.json", result)
    content = json.loads((tmp_path / "sweep.json").read_text())

    assert {name: {k: round(v, 6) for k, v in found.items()} for name, found in content["slo_rps"].items()} == {
        "asap": {"mean": 20.0, "p99": 6.6},
        "no_overlap": {"mean": 10.0, "p99": 3.3},
    }
    assert (content["kind"], round(content["resource_bound_rps"])) == ("simulated", 24)


def test_table_shows_mean_and_confidence(result: SweepResult) -> None:
    """At each rate, and the rate within the objective."""
    terminal = io.StringIO()
    Console(width=100, file=terminal).print(tables(result))

    assert "1.00±0.00" in terminal.getvalue()
    assert "20.00±0.00" in terminal.getvalue()


def test_a_rate_at_the_limit_is_at_least_so_much(tmp_path: Path) -> None:
    """On the terminal and in the file: a quick sweep does not look above 1.25 times the bound."""
    quick = quickened(SWEEP)
    found = quick.result(explore(quick.searches(), Journal(tmp_path / "j"), FakeWorkers(lambda _: 1.0).crew))
    terminal = io.StringIO()
    Console(width=100, file=terminal).print(tables(found))

    assert "at least 30.00" in terminal.getvalue()
    assert "at least 125 %" in terminal.getvalue()
    assert found.to_json()["slo_rps_is_at_least"]["asap"] == {"mean": True, "p99": True}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"systems": ("magic",)}, "unknown system 'magic'"),
        ({"rates": (0.0,)}, r"rate=0\.0 must be positive"),
        ({"duration_s": -1.0}, r"duration_s=-1\.0 must be positive"),
        ({"slo_s": 0.0}, r"slo_s=0\.0 must be positive"),
        ({"resolution_rps": -0.1}, r"resolution_rps=-0\.1 must be positive"),
    ],
)
def test_wrong_sweep_is_refused(wrong: dict[str, object], message: str) -> None:
    """Before anything is run."""
    with pytest.raises(ConfigError, match=message):
        replace(SWEEP, **wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "--system", "magic"], "unknown system 'magic'; known: asap"),
        (["simulate", "--rps", "-1"], "rate=-1.0 must be positive"),
        (["simulate", "--rps", "nan"], "rate=nan must be positive"),
        (["simulate", "--duration", "0"], "duration_s=0.0 must be positive"),
        (["simulate", "--slo", "-1"], "slo=-1.0 must be positive"),
        (["simulate", "--slo", "nan"], "slo=nan must be positive"),
        (["simulate", "--dp", "0"], "every degree must be at least 1"),
        (["simulate", "--tp", "-4"], "every degree must be at least 1"),
        (["simulate", "--ep", "0"], "every degree must be at least 1"),
        (["simulate", "--model", "gpt"], "unknown model 'gpt'"),
        (["simulate", "--hardware", "abacus"], "unknown hardware 'abacus'"),
        (["simulate", "--dequantise", "inf", "--trace", "bundled"], "bucket_s=inf must be positive"),
        (["simulate", "--skew", "zipf:-1"], "zipf exponent -1.0 must lie in 0..4"),
        (["simulate", "--trace", "/nowhere"], "trace '/nowhere' is neither a preset"),
        (["simulate", "--criterion", "best"], "criterion 'best' must be mean"),
        (["simulate", "--json", "/proc/x/y"], "cannot write /proc/x/y"),
        (["sweep", "--slo", "0"], "slo_s=0.0 must be positive"),
        (["sweep", "--duration", "-3"], "duration_s=-3.0 must be positive"),
        (["sweep", "--rates", "4,-8"], "rate=-8.0 must be positive"),
        (["sweep", "--ep", "-16"], "every degree must be at least 1"),
        (["sweep", "--trace", "Z"], "trace 'Z' is neither a preset"),
        (["sweep", "--rates", "a,b"], "--rates 'a,b' must be one or more values"),
        (["sweep", "--criteria", "p0"], "criterion 'p0' must be mean"),
        (["sweep", "--out", "/proc/x"], "cannot use journal /proc/x/journal.jsonl"),
        (["sweep", "--interconnect", "pigeon"], "unknown interconnect 'pigeon'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """What is wrong, with its value; nothing was run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asap-ray", *arguments])

    with pytest.raises(SystemExit) as exit:
        main()

    lines = capsys.readouterr().err.splitlines()
    assert (exit.value.code, len(lines), lines[0].startswith("asap-ray: "), message in lines[0]) == (2, 1, True, True)


def test_simulate_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is that of a replay, labelled simulated; the file has every request."""
    path = tmp_path / "run.json"
    monkeypatch.setattr(sys, "argv", ["asap-ray", "simulate", "--duration", "5", "--json", str(path)])

    with pytest.raises(SystemExit):
        main()

    content = json.loads(path.read_text())
    assert "(simulated)" in capsys.readouterr().out
    assert (content["kind"], len(content["requests"])) == ("simulated", content["summary"]["num_requests"])


def test_interrupted_sweep_keeps_its_points(tmp_path: Path) -> None:
    """SIGINT after the first line of progress: status 130 and a journal that opens."""
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job may not
    command = [sys.executable, "-c", f"{hears}; from asap_ray.cli import main; main()", "sweep"]
    options = ["--systems", "asap", "--rates", "1,2,3,4,5,6", "--duration", "60", "--out", str(tmp_path)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        while "points" not in (line := process.stdout.readline()):
            assert line, "the sweep ended before it said how far it is"
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]

    assert (process.returncode, "the same command goes on" in output, "Traceback" in output) == (130, True, False)
    assert (tmp_path / "journal.jsonl").read_text().count("\n") >= 1
    Journal(tmp_path / "journal.jsonl")
