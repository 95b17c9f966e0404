"""A real Prometheus scrapes a real instance under load: every panel has data, and the numbers are the client's own."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from asap_ray.cli import app
from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.rules import recordings
from asap_ray.workload.client import Plan, Result, replay
from asap_ray.workload.http_target import HttpTarget, connect
from asap_ray.workload.trace import TraceRequest
from dashboards.build import HERE

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt install prometheus)"
    ),
]

PATIENCE_S = 180.0
NUM_REQUESTS = 120
RATE_RPS = 6.0
WINDOW = "30s"


@dataclass(frozen=True)
class Loaded:
    """An instance, a Prometheus that scrapes it, and what a client saw of a load that has just ended."""

    url: str
    prometheus: str
    results: list[Result]

    def is_scraped(self) -> bool:
        """Whether Prometheus has the last request, by both ways."""
        counts = ("vllm:time_to_first_token_seconds_count", 'ray_asap_ttft_part_seconds_count{part="queue"}')
        num_answers = sum(not result.error for result in self.results)
        return [self.query(f"sum({name})") for name in counts] == [[num_answers]] * 2

    def query(self, expr: str) -> list[float]:
        """The values of an instant query, without those that are no number."""
        reply = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expr}, timeout=10, trust_env=False)
        answer = reply.json()
        assert answer["status"] == "success", answer
        values = [float(each["value"][1]) for each in answer["data"]["result"]]
        return [value for value in values if not math.isnan(value)]


@pytest.fixture(scope="module")
def loaded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """D = 2, E = 2 and prompts of 16 to 300 tokens, of which each tenth asks for too much."""
    out = tmp_path_factory.mktemp("live")
    with (
        tempfile.TemporaryDirectory(prefix="asap-", dir="/tmp") as ray_dir,  # a socket's path must be short
        serving(tiny_model, Path(ray_dir), out / "serve.log") as url,
        scraping(url, Path(ray_dir), out) as prometheus,
    ):
        loaded = Loaded(url, prometheus, asyncio.run(load(url)))
        eventually(loaded.is_scraped, out / "prometheus.log")
        yield loaded


@contextmanager
def serving(model: Path, ray_dir: Path, log: Path) -> Iterator[str]:
    """`asap-ray serve` on a Ray of its own, which reports every second."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "asap-ray"), "serve", "--model", str(model), "--port", str(port)]
    environment = os.environ | {"RAY_TMPDIR": str(ray_dir), "RAY_metrics_report_interval_ms": "1000"}
    with running(command, log, environment) as process:
        eventually(lambda: "ready: " in log.read_text() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"


@contextmanager
def scraping(url: str, ray_dir: Path, out: Path) -> Iterator[str]:
    """Prometheus with the configuration we ship, but faster, and where this Ray writes its targets."""
    settings = yaml.safe_load((HERE / "prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(HERE / "prometheus/asap.rules.yml")]
    ray, asap = settings["scrape_configs"]
    ray["file_sd_configs"] = [{"files": [f"{ray_dir}/ray/prom_metrics_service_discovery.json"]}]
    asap["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    (out / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port, log = free_port(), out / "prometheus.log"
    command = ["prometheus", f"--config.file={out}/prometheus.yml", f"--storage.tsdb.path={out}/tsdb"]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], log, os.environ):
        eventually(lambda: "ready to receive" in log.read_text(), log)
        yield f"http://127.0.0.1:{port}"


async def load(url: str) -> list[Result]:
    """What the client saw."""
    requests = [
        TraceRequest(timestamp_s=n / RATE_RPS, input_length=9000 if n % 10 == 9 else 16 + 71 * n % 285, output_length=1)
        for n in range(NUM_REQUESTS)
    ]
    async with connect(url) as client:
        plan = Plan(requests=requests, vocab_size=256, timeout_s=PATIENCE_S)
        return await replay(plan, HttpTarget(client, "tiny"), lambda _: None)


EXPRS = [
    (f"{board.uid}: {panel.title} {n}", target.expr)
    for board in boards()
    for row in board.rows
    for panel in row.panels
    for n, target in enumerate(panel.targets)
]


@pytest.mark.parametrize("expr", [expr for _, expr in EXPRS], ids=[name for name, _ in EXPRS])
def test_a_panel_has_data(loaded: Loaded, expr: str) -> None:
    """At the end of a load, with what Grafana puts in place of its variables."""
    filled = expr.replace("$__rate_interval", WINDOW).replace("$app", ".*").replace("$model", ".*")

    assert loaded.query(filled) != []


@pytest.mark.parametrize("name", [rule.name for rule in recordings()])
def test_a_recording_has_data(loaded: Loaded, name: str) -> None:
    """Under its own name."""
    assert loaded.query(name) != []


def test_first_tokens_are_those_of_the_client(loaded: Loaded) -> None:
    """As many as it got, and the sum of the times that its answers told it; warming up is not among them."""
    told_s = [result.ttft_parts_s["total_s"] for result in loaded.results if not result.error]

    assert loaded.query("sum(vllm:time_to_first_token_seconds_count)") == [len(told_s)]
    assert loaded.query("sum(vllm:time_to_first_token_seconds_sum)") == [pytest.approx(sum(told_s))]


def test_the_client_never_measured_less(loaded: Loaded) -> None:
    """Its own clock has the way there and back as well."""
    measured_s = sum(result.ttft_s or 0.0 for result in loaded.results if not result.error)

    assert loaded.query("sum(vllm:time_to_first_token_seconds_sum)")[0] <= measured_s


def test_tokens_and_refusals_are_those_of_the_client(loaded: Loaded) -> None:
    """Every prompt token it sent and was not refused, a token an answer, and each 400."""
    answered = [result for result in loaded.results if not result.error]

    assert loaded.query("sum(vllm:prompt_tokens_total)") == [sum(result.input_length for result in answered)]
    assert loaded.query("sum(vllm:generation_tokens_total)") == [len(answered)]
    assert loaded.query('sum(ray_asap_request_errors_total{status="400"})') == [NUM_REQUESTS // 10]


def test_top_shows_what_the_client_saw(loaded: Loaded) -> None:
    """As many answers, and every device."""
    num_answers = sum(not result.error for result in loaded.results)
    lines = CliRunner().invoke(app, ["top", "--url", loaded.url, "--once"]).output.splitlines()

    (ttft,) = [line for line in lines if "time to first token" in line]
    assert ttft.split()[4] == str(num_answers)
    devices = [line.split()[0] for line in lines if line.startswith("asap:")]
    assert devices == ["asap:attention:0", "asap:attention:1", "asap:moe:0", "asap:moe:1"]


def eventually(is_so: Callable[[], bool], log: Path) -> None:
    """Wait; what the log says if it was in vain."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.2)


@contextmanager
def running(command: list[str], log: Path, environment: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process while the block runs; SIGTERM at the end."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
