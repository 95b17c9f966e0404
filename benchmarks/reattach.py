"""How long nobody is answered when the frontend of an instance is killed, over HTTP, and where the time goes.

    python benchmarks/reattach.py [--quick] [--kills N] [--json FILE]

One replica over D = 1 group and E = 1 MoE device of a small random model, deployed on a Ray of its own. Each time the
replica gets SIGKILL. Times from the kill: until Serve has started another one (`found`); until it says that it is
ready (`attached`: a Python process, imports, the devices of the dead one); until a prompt is `answered`. The devices
must be the same processes afterwards: no weights were loaded. The aim is 5 s for all of it. One kill more, at the end,
happens while a prompt runs, and the HTTP status that its client gets is printed.

--quick: two kills.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import ray
from ray import serve
from ray.serve.config import HTTPOptions

from asap_ray.actors.app import build_app
from asap_ray.actors.placement import NAMESPACE, running_names
from asap_ray.actors.proxy import CALLBACK, IMPORT_PATH
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny

APP = "reattach"
KILLS = 7
QUICK_KILLS = 2
PATIENCE_S = 120.0
POLL_S = 0.02
SETTLE_S = 3.0
"""Serve has looked at the new replica, so that the next kill is found no sooner than it would be any time."""


@dataclass(frozen=True)
class Row:
    """One kill; milliseconds, each from the point before."""

    found_ms: float
    attached_ms: float
    answered_ms: float

    @property
    def all_ms(self) -> float:
        """From the kill to an answer."""
        return self.found_ms + self.attached_ms + self.answered_ms


def pid_of(name: str) -> int:
    """The process of an actor."""
    pid: int = ray.get(ray.get_actor(name, namespace=NAMESPACE).__ray_call__.remote(lambda _: os.getpid()))
    return pid


def replicas() -> set[str]:
    """Names of the replicas that live."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {each["name"] for each in named if each["name"].startswith(f"SERVE_REPLICA::{APP}#")}


def until(done: Callable[[], bool]) -> float:
    """When it was so."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{done.__name__} is not so after {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return time.monotonic()


class Client:
    """Of one server; a connection each time, and no patience."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_ready(self) -> bool:
        """Whether the instance says so."""
        return self._status("GET", "/ready") == httpx.codes.OK

    def is_answered(self) -> bool:
        """Whether a prompt is."""
        body = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0}
        return self._status("POST", "/v1/completions", body) == httpx.codes.OK

    def ask_for_long(self) -> int:
        """The status of an answer that takes longer than anybody lives; 0: the connection broke."""
        body = {"prompt": [1, 2, 3], "max_tokens": 1024, "temperature": 0, "ignore_eos": True}
        return self._status("POST", "/v1/completions", body, PATIENCE_S)

    def is_busy(self) -> bool:
        """Whether a prompt runs."""
        with contextlib.suppress(httpx.TransportError):
            metrics = httpx.get(f"{self._url}/metrics", timeout=1.0, trust_env=False).text
            running = next(line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running{"))
            return float(running.split()[-1]) > 0
        return False

    def _status(self, method: str, path: str, body: object = None, timeout_s: float = 1.0) -> int:
        try:
            reply = httpx.request(method, f"{self._url}{path}", json=body, timeout=timeout_s, trust_env=False)
        except httpx.TransportError:
            return 0
        return reply.status_code


def kill(client: Client) -> Row:
    """Kill the replica and follow what happens."""
    (victim,) = replicas()
    devices = {name: pid_of(name) for name in running_names(APP)}
    pid = pid_of(victim)
    points = [time.monotonic()]
    os.kill(pid, signal.SIGKILL)
    points.append(until(lambda: bool(replicas() - {victim})))
    points.append(until(client.is_ready))
    points.append(until(client.is_answered))
    if {name: pid_of(name) for name in running_names(APP)} != devices:
        raise AssertionError("devices were started again")
    time.sleep(SETTLE_S)
    steps_ms = (1e3 * (after - before) for before, after in pairwise(points))
    return Row(*steps_ms)


def kill_while_busy(client: Client) -> int:
    """The status that the client of a running prompt gets."""
    with ThreadPoolExecutor() as pool:
        in_flight = pool.submit(client.ask_for_long)
        until(client.is_busy)
        kill(client)
        return in_flight.result()


def measure(model: str, num_kills: int) -> tuple[list[Row], int]:
    """Deploy, and kill the replica again and again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    parallel = {"dp_groups": 1, "tp": 1, "moe_devices": 1}
    serve.run(build_app({"name": APP, "model": model, "parallel": parallel}), name=APP, route_prefix="/")
    client = Client(f"http://127.0.0.1:{port}")
    until(client.is_ready)
    time.sleep(SETTLE_S)
    rows = [kill(client) for _ in range(num_kills)]
    in_flight = kill_while_busy(client)
    serve.shutdown()
    return rows, in_flight


def table(rows: Sequence[Row]) -> str:
    """Medians and ranges."""
    columns = ("found_ms", "attached_ms", "answered_ms", "all_ms")
    lines = [f"| kills | {' | '.join(column.replace('_ms', ', ms') for column in columns)} |"]
    lines.append("|---:|" + "---:|" * len(columns))
    cells = [[getattr(row, column) for row in rows] for column in columns]
    shown = [f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" for values in cells]
    return "\n".join([*lines, f"| {len(rows)} | {' | '.join(shown)} |"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KILLS} kills")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--json", type=Path, help="a row a kill goes to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(CALLBACK, IMPORT_PATH)
    ray.init(
        num_cpus=4, resources={"NPU": 2}, object_store_memory=96 << 20, include_dashboard=False, log_to_driver=False
    )
    try:
        with tempfile.TemporaryDirectory() as directory:
            make_random_checkpoint(Path(directory), **tiny())
            rows, in_flight = measure(directory, QUICK_KILLS if options.quick else options.kills)
    finally:
        ray.shutdown()
    print(table(rows))
    print(f"status of a prompt in flight: {in_flight or 'none, the connection broke'}")
    if options.json:
        found = [asdict(row) | {"all_ms": row.all_ms, "kind": "measured"} for row in rows]
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
