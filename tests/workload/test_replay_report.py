"""What a replay report says of its results."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from asap_ray.errors import ConfigError
from asap_ray.evaluation.replay_html import write_html
from asap_ray.evaluation.replay_report import (
    Report,
    check_writable,
    summarise,
    summary_table,
    write_json,
)
from asap_ray.evaluation.watch import Load, Utilisation, Watch
from asap_ray.tracks import device_order
from asap_ray.workload.client import Result

PARTS_S = {"queue_s": 0.1, "attention_s": 0.4, "dispatch_s": 0.0, "combine_s": 0.2, "total_s": 0.9}


def answered(index: int, input_length: int = 100, ttft_s: float = 1.0, **parts_s: float) -> Result:
    """A request that was due at its index in seconds, and got its token."""
    return Result(
        index=index,
        input_length=input_length,
        due_s=float(index),
        lateness_s=0.001 * index,
        ttft_s=ttft_s,
        status=200,
        error=None,
        ttft_parts_s=parts_s,
    )


def failed(status: int, error: str, input_length: int = 100) -> Result:
    """A request without a token."""
    return Result(
        index=0,
        input_length=input_length,
        due_s=0.0,
        lateness_s=0.0,
        ttft_s=None,
        status=status,
        error=error,
        ttft_parts_s={},
    )


def report(*results: Result, watch: Watch | None = None) -> Report:
    """A report on these results."""
    return Report(
        title="A <replay>",
        date="2026-01-01",
        command="asap-ray replay",
        trace="two rows",
        machine="a machine",
        slo_s=1.0,
        results=results,
        watch=watch or Watch(),
    )


def printed(*results: Result) -> str:
    """The table as a terminal of 80 columns shows it."""
    terminal = io.StringIO()
    Console(width=80, file=terminal).print(summary_table(summarise(results, slo_s=1.0)))
    return terminal.getvalue()


def test_failed_requests_miss_the_slo() -> None:
    """One in time, one too late, two without an answer: a quarter."""
    results = [answered(0), answered(1, ttft_s=1.5), failed(429, "full"), failed(0, "ReadError: x")]

    assert summarise(results, slo_s=1.0).slo_attainment == 0.25


def test_errors_are_counted_by_kind() -> None:
    """Texts that differ in their particulars are one kind, the most frequent first."""
    results = [failed(0, "no token"), failed(429, "full of 3"), failed(429, "full of 4"), failed(0, "ReadError: a")]

    assert summarise(results, slo_s=1.0).errors == {"HTTP 429": 2, "no token": 1, "ReadError": 1}


def test_ttft_spread_is_of_answered_requests() -> None:
    """Failures have no TTFT."""
    spread = summarise([*(answered(i, ttft_s=i + 1.0) for i in range(5)), failed(429, "full")], slo_s=1.0).ttft_s

    assert spread is not None
    assert (spread.mean, spread.p50, spread.max) == (3.0, 3.0, 5.0)


def test_throughput_is_answered_tokens_until_the_last_first_token() -> None:
    """200 tokens, the last answer at 1 + 3 s."""
    summary = summarise([answered(0), answered(1, ttft_s=3.0), failed(429, "full", 999)], slo_s=1.0)

    assert (summary.prompt_tokens, summary.duration_s, summary.prompt_tokens_per_s) == (200, 4.0, 50.0)


def test_buckets_are_powers_of_two_and_short_prompts_share_one() -> None:
    """31 to 32 k gives the ranges of Figure 15: up to 512, 513 to 1024 ... 32 k."""
    summary = summarise([answered(0, 31), answered(1, 512), answered(2, 513), answered(3, 32768)], slo_s=1.0)

    assert [bucket.up_to_tokens for bucket in summary.buckets] == [512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert [bucket.num_requests for bucket in summary.buckets] == [2, 1, 0, 0, 0, 0, 1]


def test_every_request_is_in_one_bucket() -> None:
    """Whatever the lengths."""
    summary = summarise([answered(i, input_length=1 + i) for i in range(300)], slo_s=1.0)

    assert sum(bucket.num_requests for bucket in summary.buckets) == 300


def test_parts_leave_a_rest() -> None:
    """What the server's parts do not explain is `other_s`."""
    (bucket,) = summarise([answered(0, ttft_s=1.0, **PARTS_S)], slo_s=1.0).buckets

    assert {name: round(value, 9) for name, value in bucket.ttft_parts_s.items()} == {
        "queue_s": 0.1,
        "attention_s": 0.4,
        "dispatch_s": 0.0,
        "combine_s": 0.2,
        "other_s": 0.3,
    }


def test_table_fits_eighty_columns_and_shows_every_digit() -> None:
    """Prompts of 64k tokens and answers after 100 s are not cut."""
    text = printed(*(answered(i, 2**i, ttft_s=100.0) for i in range(17)))

    assert "32,769-65,536" in text
    assert "100,000" in text
    assert "…" not in text


def test_table_names_the_failures() -> None:
    """With their number."""
    assert "2 x HTTP 503" in printed(failed(503, "a"), failed(503, "b"))


def test_json_holds_summary_and_results(tmp_path: Path) -> None:
    """Other programs need nothing else, and see that the numbers are measured."""
    path = tmp_path / "out.json"
    write_json(path, report(answered(0), failed(429, "full")))

    content = json.loads(path.read_text())
    assert content["kind"] == "measured"
    assert content["summary"]["slo_attainment"] == 0.5
    assert [each["status"] for each in content["results"]] == [200, 429]


@pytest.mark.parametrize(
    "results",
    [
        (),
        (failed(429, "full"),),
        (answered(0),),
        tuple(answered(i, 10 * i + 1, 0.1 * i + 0.01, **PARTS_S) for i in range(20)),
    ],
)
def test_html_stands_alone(tmp_path: Path, results: tuple[Result, ...]) -> None:
    """No results, only failures, or many: the page is written and loads nothing from elsewhere."""
    path = tmp_path / "out.html"
    write_html(path, report(*results))
    text = path.read_text()

    assert text.count("<svg") == 3
    assert not any(reference in text for reference in ('src="', "url(http", "<link", "<script"))
    assert "A &lt;replay&gt;" in text


def test_html_shows_each_device(tmp_path: Path) -> None:
    """Utilisation is a picture of its own; text in it is drawn, so count its rows."""
    path = tmp_path / "out.html"
    samples = [
        Utilisation(t_s=t_s, device=device, busy=0.5) for t_s in (1.0, 2.0) for device in ("attention:0", "moe:10")
    ]
    write_html(path, report(answered(0), watch=Watch(utilisation=samples)))

    pictures = path.read_text().split("<svg")[1:]
    svg = ElementTree.fromstring("<svg" + pictures[3].split("</svg>")[0] + "</svg>")
    assert sum(each.get("id", "").startswith("QuadMesh") for each in svg.iter()) >= 2


def test_devices_of_several_replicas_stand_together() -> None:
    """Those of the first have no number; tenth after second."""
    devices = ["1:moe:0", "moe:10", "moe:2", "1:attention:0", "attention:1"]
    assert sorted(devices, key=device_order) == ["attention:1", "moe:2", "moe:10", "1:attention:0", "1:moe:0"]


@pytest.mark.parametrize(("kv_cache_usage", "num_plots"), [(None, 2), (0.5, 3)])
def test_html_shows_the_load(tmp_path: Path, kv_cache_usage: float | None, num_plots: int) -> None:
    """Requests and tokens a second; the KV cache where the server has one."""
    path = tmp_path / "out.html"
    samples = [
        Load(t_s=t_s, running=2, waiting=1, prompt_tokens_per_s=10.0, kv_cache_usage=kv_cache_usage, prefix_hits=None)
        for t_s in (1.0, 2.0)
    ]
    write_html(path, report(answered(0), watch=Watch(load=samples)))

    pictures = path.read_text().split("<svg")[1:]
    svg = ElementTree.fromstring("<svg" + pictures[3].split("</svg>")[0] + "</svg>")
    assert sum(each.get("id", "").startswith("axes_") for each in svg.iter()) == num_plots


def test_writable_path_is_left_as_it_was(tmp_path: Path) -> None:
    """The check neither leaves a file behind nor empties one."""
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("precious")

    check_writable(new)
    check_writable(old)

    assert not new.exists()
    assert old.read_text() == "precious"


def test_unwritable_path_is_refused_before_the_replay(tmp_path: Path) -> None:
    """A directory that does not exist, named with the reason."""
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere/out\.json: No such file or directory"):
        check_writable(tmp_path / "nowhere" / "out.json")
