"""`asap-ray top`: what it reads off an instance, and what it says when there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from typer.testing import CliRunner

from asap_ray.actors.exporters import PrometheusExporter
from asap_ray.cli import app
from asap_ray.dashboards.looks import NEVER, Look, Span, connect, look
from asap_ray.dashboards.terminal import page
from asap_ray.errors import ConfigError, Unavailable
from asap_ray.telemetry import frontend

DUTY = {"compute_s": 1.5, "num_items": 60, "num_rows": 600}


def exposition(ttfts_s: tuple[float, ...] = ()) -> str:
    """Of an instance that runs three requests and had these times to first token."""
    registry = CollectorRegistry()
    exporter = PrometheusExporter(registry, model_name="tiny", engine="0")
    exporter.set(frontend.RUNNING, 3)
    exporter.count(frontend.PROMPT_TOKENS, 1000 * len(ttfts_s))
    for ttft_s in ttfts_s:
        exporter.observe(frontend.TTFT, ttft_s)
    return generate_latest(registry).decode()


def seen(ttfts_s: tuple[float, ...] = (), at_s: float = 0.0, duty: dict[str, Any] | None = None) -> Look:
    """A look at such an instance."""
    answers = {
        "/metrics": httpx.Response(200, text=exposition(ttfts_s)),
        "/duty": httpx.Response(200, json=duty or {}),
        "/ready": httpx.Response(503, json={"error": {"message": "not ready: asap:moe:1 (gone)"}}),
    }
    client = httpx.Client(base_url="http://instance", transport=httpx.MockTransport(lambda r: answers[r.url.path]))
    taken = look(client)
    return Look(at_s, taken.model, taken.missing, taken.samples, taken.duty)


def test_a_look_has_the_model_and_who_is_missing() -> None:
    """The one from the labels, the other from `/ready`."""
    taken = seen()
    assert (taken.model, taken.missing, taken.total(frontend.RUNNING)) == ("tiny", "not ready: asap:moe:1 (gone)", 3)


def test_rates_are_of_the_time_between_two_looks() -> None:
    """One prompt of 1000 tokens before, three at 2 s."""
    assert Span(seen((0.1,)), seen((0.1, 0.1, 0.1), at_s=2.0)).rate(frontend.PROMPT_TOKENS) == 1000


@pytest.mark.parametrize(
    ("share", "expected_s"), [(0.5, 0.02), (0.75, 0.03), (1.0, 0.04)], ids=["half", "three quarters", "all"]
)
def test_a_quantile_is_even_within_its_bucket(share: float, expected_s: float) -> None:
    """Two times end in the bucket up to 20 ms, two in the one up to 40 ms: as `histogram_quantile` has it."""
    span = Span(NEVER, seen((0.015, 0.02, 0.03, 0.03)))
    assert span.quantile(share, frontend.TTFT) == pytest.approx(expected_s)


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    """There is no better estimate of 5000 s."""
    assert Span(NEVER, seen((5000.0,))).quantile(0.5, frontend.TTFT) == 2560


def test_only_what_came_in_between_counts() -> None:
    """A slow start is forgotten."""
    span = Span(seen((100.0, 100.0)), seen((100.0, 100.0, 0.001), at_s=1.0))
    assert span.quantile(0.99, frontend.TTFT) == pytest.approx(0.001, rel=0.02)


def test_nothing_in_between_has_no_quantile() -> None:
    """Nor a mean."""
    span = Span(seen((0.1,)), seen((0.1,), at_s=1.0))
    assert (span.quantile(0.5, frontend.TTFT), span.mean(frontend.TTFT)) == (None, None)


def test_a_server_that_began_anew_counts_from_zero() -> None:
    """Not a negative rate."""
    span = Span(seen((0.1, 0.1)), seen((0.1,), at_s=1.0))
    assert span.rate(frontend.PROMPT_TOKENS) == 1000
    assert span.quantile(1.0, frontend.TTFT) == pytest.approx(0.1)


def test_the_duty_of_a_device_is_the_growth_of_its_seconds() -> None:
    """1.5 s in 2 s; a device that is new has none yet."""
    span = Span(seen(duty={"moe:0": dict.fromkeys(DUTY, 0)}), seen(at_s=2.0, duty={"moe:0": DUTY, "moe:1": DUTY}))
    assert [span.device_rate(f"moe:{e}", "compute_s") for e in (0, 1)] == [0.75, None]


def test_the_page_has_all_of_it() -> None:
    """Latencies, devices, requests, and why it is not ready, in the width of any terminal."""
    before = seen(duty={"asap:moe:0": dict.fromkeys(DUTY, 0)})
    now = seen((0.1, 0.1), at_s=2.0, duty={"asap:moe:0": DUTY})
    console = Console(width=80)
    with console.capture() as captured:
        console.print(page("http://instance", Span(before, now), Span(NEVER, now)))

    pieces = ("tiny at http://instance: not ready: asap:moe:1", "3 running", "1,000 prompt tokens/s", "75%", "10.0")
    assert [piece for piece in pieces if piece not in captured.get()] == []


@pytest.mark.parametrize("url", ["instance:8000", "ftp://instance", "http://"])
def test_an_address_must_be_one(url: str) -> None:
    """What to write instead."""
    with pytest.raises(ConfigError, match="is no server; write it as http"):
        connect(url)


def test_nobody_there_is_said() -> None:
    """Port 9 of this machine has no instance."""
    with connect("http://127.0.0.1:9") as client, pytest.raises(Unavailable, match=r"no answer from http://127"):
        look(client)


def test_a_server_without_our_metrics_is_no_instance() -> None:
    """Its own page of metrics, or a 404."""
    transport = httpx.MockTransport(lambda _: httpx.Response(404, text="Path '/metrics' not found"))
    with (
        httpx.Client(base_url="http://other", transport=transport) as client,
        pytest.raises(ConfigError, match=r"http://other/metrics \(HTTP 404\) has no vllm:num_requests_running"),
    ):
        look(client)


@pytest.fixture
def instance() -> Iterator[str]:
    """The address of a server that answers as an instance does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies = {"/metrics": exposition((0.1,)), "/duty": json.dumps({"asap:moe:0": DUTY}), "/ready": "{}"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bodies[self.path].encode())

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_once_prints_and_ends(instance: str) -> None:
    """For scripts."""
    result = CliRunner().invoke(app, ["top", "--url", instance, "--once", "--interval", "0.1"])

    assert result.exit_code == 0
    assert "tiny at" in result.output
    assert "asap:moe:0" in result.output
