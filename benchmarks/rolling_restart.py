"""What clients see of a rolling restart: two replicas over HTTP, replaced one after the other under load.

    python benchmarks/rolling_restart.py [--quick] [--rolls N] [--json FILE]

Two replicas, each with D = 1 group and E = 1 MoE device of a small random model, deployed on a Ray of its own; clients
ask one prompt after the other over kept-alive connections. Each roll deploys another value of `inflection_tokens`, and
lasts until no process of the old devices is left. The aim is no request that fails.

--quick: one roll.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import HTTPOptions

from asap_ray.actors.app import build_app
from asap_ray.actors.placement import NAMESPACE, running_in_app
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny

APP = "rolling"
CLIENTS = 4
ROLLS = 5
STEADY_S = 5.0
PATIENCE_S = 300.0
POLL_S = 0.1


@dataclass
class Load:
    """Clients in a closed loop, and how they were answered."""

    url: str
    times_s: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    ends: threading.Event = field(default_factory=threading.Event)

    def client(self, number: int) -> None:
        """One prompt after the other."""
        body = {"prompt": [number + 1] * 20, "max_tokens": 1, "temperature": 0}
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
            while not self.ends.is_set():
                asked_s = time.monotonic()
                try:
                    status = str(http.post(f"{self.url}/v1/completions", json=body).status_code)
                except httpx.TransportError as error:
                    status = type(error).__name__
                self.times_s.append(time.monotonic() - asked_s)
                self.statuses[status] += 1

    def begin_anew(self) -> tuple[list[float], Counter[str]]:
        """What was so far."""
        seen = self.times_s, self.statuses
        self.times_s, self.statuses = [], Counter()
        return seen


@dataclass(frozen=True)
class Row:
    """One roll, and the steady load before it."""

    seconds: float
    num_requests: int
    num_failed: int
    statuses: dict[str, int]
    median_ms: float
    slowest_ms: float
    steady_median_ms: float


def deploy(model: str, inflection_tokens: int) -> None:
    """Deploy, or deploy again; returns when both replicas are of this configuration."""
    prefill = {"max_tokens": 256, "solo_tokens": 128, "inflection_tokens": inflection_tokens, "deadline_s": 20.0}
    parallel = {"dp_groups": 1, "tp": 1, "moe_devices": 1}
    args = {"name": APP, "model": model, "parallel": parallel, "prefill": prefill}
    app: Any = build_app(args)
    bound = app._bound_deployment
    serve.run(bound.options(num_replicas=2).bind(*bound.init_args), name=APP, route_prefix="/")


def devices() -> set[int]:
    """Processes of all devices."""
    found = set()
    for name in running_in_app(APP):
        with contextlib.suppress(ValueError, RayActorError):  # gone meanwhile
            actor = ray.get_actor(name, namespace=NAMESPACE)
            found.add(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))
    return found


def roll(model: str, load: Load, inflection_tokens: int) -> Row:
    """Replace both replicas."""
    load.begin_anew()
    time.sleep(STEADY_S)
    old = devices()
    steady_s, _ = load.begin_anew()
    began_s = time.monotonic()
    deploy(model, inflection_tokens)
    while old & devices():
        if time.monotonic() > began_s + PATIENCE_S:
            raise TimeoutError(f"devices of the old configuration run after {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    seconds = time.monotonic() - began_s
    times_s, statuses = load.begin_anew()
    return Row(
        seconds=seconds,
        num_requests=statuses.total(),
        num_failed=statuses.total() - statuses["200"],
        statuses=dict(statuses),
        median_ms=1e3 * statistics.median(times_s),
        slowest_ms=1e3 * max(times_s),
        steady_median_ms=1e3 * statistics.median(steady_s),
    )


def measure(model: str, num_rolls: int) -> list[Row]:
    """Deploy, and roll again and again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    deploy(model, 32)
    load = Load(f"http://127.0.0.1:{port}")
    clients = [threading.Thread(target=load.client, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        return [roll(model, load, 33 + n) for n in range(num_rolls)]
    finally:
        load.ends.set()
        for client in clients:
            client.join()
        serve.shutdown()


def table(rows: Sequence[Row]) -> str:
    """A line a roll."""
    lines = ["| roll, s | requests | failed | median, ms | slowest, ms | median before, ms |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    lines += [
        f"| {row.seconds:.0f} | {row.num_requests} | {row.num_failed} | {row.median_ms:.0f} | {row.slowest_ms:.0f} "
        f"| {row.steady_median_ms:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one roll")
    parser.add_argument("--rolls", type=int, default=ROLLS)
    parser.add_argument("--json", type=Path, help="a row a roll goes to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.init(
        num_cpus=4, resources={"NPU": 4}, object_store_memory=96 << 20, include_dashboard=False, log_to_driver=False
    )
    try:
        with tempfile.TemporaryDirectory() as directory:
            make_random_checkpoint(Path(directory), **tiny())
            rows = measure(directory, 1 if options.quick else options.rolls)
    finally:
        ray.shutdown()
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) | {"kind": "measured"} for row in rows], indent=1))


if __name__ == "__main__":
    main()
