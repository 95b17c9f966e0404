"""The served application from a shell: `asap-ray serve` and what its users do to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.telemetry.trace_reader import read_trace

pytestmark = pytest.mark.cluster

PATIENCE_S = 90.0
ASAP_RAY = str(Path(sys.executable).parent / "asap-ray")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(ready: Callable[[], bool]) -> bool:
    """Whether `ready` becomes true while anybody would wait."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if ready():
            return True
        time.sleep(0.1)
    return False


def descendants(pid: int) -> list[int]:
    """Every process below `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(stat.parent.name)
            found += [child, *descendants(child)]
    return found


class Served:
    """`asap-ray serve` in a process of its own, from a shell that says nothing of Ray's authentication."""

    def __init__(self, model: Path, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        options = ["--model", str(model), "--dp", "2", "--ep", "2", "--port", str(self.port)]
        environment = os.environ | {"HOME": str(log.parent)}  # where Ray keeps its token
        environment.pop("RAY_AUTH_MODE", None)
        command = [ASAP_RAY, "serve", *options]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def wait_until_ready(self) -> None:
        """Wait for the one line."""
        assert eventually(lambda: "ready: " in self.log.read_text()), self.log.read_text()

    def find(self, title: str) -> int:
        """The pid of the Ray process whose title starts like this."""
        for pid in descendants(self.process.pid):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(title):
                return pid
        raise AssertionError(f"no process {title}")

    def answers(self) -> bool:
        """Whether a prompt is answered."""
        try:
            body = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0}
            return httpx.post(f"{self.url}/v1/completions", json=body, timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def kill_everything(self) -> None:
        """SIGKILL to the command and all below it, as one blow."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An instance that serves; killed at the end if a test has not stopped it."""
    served = Served(tiny_model, tmp_path_factory.mktemp("served") / "log")
    served.wait_until_ready()
    yield served
    served.kill_everything()


def test_one_line_when_ready(served: Served) -> None:
    """Nothing is printed but where it serves and what."""
    lines = served.log.read_text().splitlines()

    assert [line.split()[:2] for line in lines] == [["ready:", served.url]]


def test_the_openai_client_works_unmodified(served: Served) -> None:
    """A completion and its stream give the same text."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    request = {"model": "tiny", "prompt": "def prefill(self):", "max_tokens": 4, "temperature": 0}

    whole = client.completions.create(**request).choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True))

    assert (streamed, bool(whole)) == (whole, True)


def test_every_device_reports_its_duty(served: Served) -> None:
    """The totals behind the utilisation of a report come from all four devices."""
    totals = httpx.get(f"{served.url}/duty").json()

    assert sorted(totals) == ["asap:attention:0", "asap:attention:1", "asap:moe:0", "asap:moe:1"]


def test_a_timeline_has_every_stream(served: Served, tmp_path: Path) -> None:
    """The command's file: two ranks and two MoE devices with three streams, and a flow through both sides."""
    httpx.post(f"{served.url}/v1/completions", json={"prompt": [5] * 20, "max_tokens": 1}).raise_for_status()
    subprocess.run([ASAP_RAY, "timeline", "--url", served.url, "-o", tmp_path / "trace.json"], check=True)

    trace = read_trace(tmp_path / "trace.json")
    streams = sorted({(each.process, each.thread) for each in trace.slices if not each.thread.startswith("slot")})
    moe = [(f"moe {e}", stream) for e in (0, 1) for stream in ("compute", "receive", "send")]
    assert streams == [("attention 0 rank 0", "attention"), ("attention 1 rank 0", "attention"), *moe]
    assert {"dispatch", "experts", "finish"} <= {each.name for flow in trace.flows for each in flow}


def test_a_killed_frontend_comes_back_to_the_same_devices(served: Served) -> None:
    """SIGKILL of the replica: its client may try again, and Serve starts another, which finds the actors as they are.

    It has loaded no torch, nor weights.
    """
    device, before = served.find("ray::MoEDevice"), duty_rows(served)
    body = {"prompt": [5] * 20, "max_tokens": 1024, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(httpx.post, f"{served.url}/v1/completions", json=body, timeout=PATIENCE_S)
        assert eventually(lambda: duty_rows(served) > before)  # it runs
        os.kill(served.find("ray::ServeReplica:asap"), signal.SIGKILL)

        assert (lost.result().status_code, "retry-after" in lost.result().headers) == (503, True)
    assert eventually(served.answers)
    assert served.find("ray::MoEDevice") == device
    assert "libtorch" not in Path(f"/proc/{served.find('ray::ServeReplica:asap')}/maps").read_text()


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_hung_frontend_is_ended_and_its_devices_are_taken_over(served: Served) -> None:
    """SIGSTOP of the replica: its client may try again once its successor has ended it, and no weights are loaded."""
    device, before = served.find("ray::MoEDevice"), duty_rows(served)
    hung = served.find("ray::ServeReplica:asap")
    body = {"prompt": [5] * 20, "max_tokens": 1024, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(httpx.post, f"{served.url}/v1/completions", json=body, timeout=2 * PATIENCE_S)
        assert eventually(lambda: duty_rows(served) > before)  # it runs
        os.kill(hung, signal.SIGSTOP)

        assert eventually(lambda: not Path(f"/proc/{hung}/exe").exists())
        assert (lost.result().status_code, "retry-after" in lost.result().headers) == (503, True)
    assert eventually(served.answers)
    assert served.find("ray::MoEDevice") == device


def test_a_killed_device_is_not_served_around(served: Served) -> None:
    """SIGKILL of a MoE device: not ready, then a fresh instance that answers."""
    os.kill(served.find("ray::MoEDevice"), signal.SIGKILL)

    assert eventually(lambda: httpx.get(f"{served.url}/ready", timeout=10).status_code == 503)
    assert eventually(served.answers)


def test_sigterm_finishes_what_runs_and_ends_everything_it_started(served: Served) -> None:
    """A running answer is completed, readiness ends, the command exits with 0 and leaves no process below it."""
    below = descendants(served.process.pid)
    before = duty_rows(served)
    body = {"prompt": [5] * 2000, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, f"{served.url}/v1/completions", json=body, timeout=PATIENCE_S)
        assert eventually(lambda: duty_rows(served) > before)  # it runs
        served.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: httpx.get(f"{served.url}/ready", timeout=10).status_code == 503)

        assert answer.result().json()["usage"]["completion_tokens"] == 200
    assert served.process.wait(timeout=PATIENCE_S) == 0
    assert eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below))


def duty_rows(served: Served) -> int:
    """Tokens attended so far, summed over layers and groups."""
    totals = httpx.get(f"{served.url}/duty", timeout=10).json()
    return sum(each["num_rows"] for name, each in totals.items() if "attention" in name)


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        pytest.param("gcs_server", signal.SIGTERM, marks=pytest.mark.thorough, id="ray"),  # Ray's own handler says so
        pytest.param("ray::ServeController", 0, marks=pytest.mark.thorough, id="serve"),
        pytest.param("ray::ServeReplica:asap", 0, id="frontend"),
    ],
)
def test_sigterm_while_it_starts_ends_all_that_was_begun(
    tiny_model: Path, tmp_path: Path, begun: str, status: int
) -> None:
    """As soon as there is such a process: the command ends, says nothing of being ready, and leaves no process."""
    served = Served(tiny_model, tmp_path / "log")
    try:
        assert eventually(lambda: any(begun in title for title in titles(served.process.pid).values()))
        below = list(titles(served.process.pid))
        served.process.send_signal(signal.SIGTERM)

        assert (served.process.wait(timeout=PATIENCE_S), "ready" in served.log.read_text()) == (status, False)
        assert eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below))
    finally:
        served.kill_everything()


def titles(pid: int) -> dict[int, str]:
    """Of every process below one, by number."""
    found = {}
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_text()
    return found


@pytest.mark.thorough
def test_killing_everything_leaves_no_shared_memory(tiny_model: Path, tmp_path: Path) -> None:
    """SIGKILL of every process at once, while it serves: none of its buffers is mapped, nor left in /dev/shm."""
    before = shared_memory()
    served = Served(tiny_model, tmp_path / "log")
    served.wait_until_ready()
    assert any(each.startswith("memfd") for each in shared_memory() - before)

    served.kill_everything()

    assert eventually(lambda: not shared_memory() - before)


def shared_memory() -> set[str]:
    """Files in /dev/shm, and our memfd segments that processes of the machine have mapped, by inode."""
    found = {str(path) for path in Path("/dev/shm").iterdir()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue
        found |= {f"memfd {line.split()[4]}" for line in lines if "memfd:asap-" in line}
    return found
