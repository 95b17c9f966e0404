"""Serve on a Ray that keeps its state in Redis; kill its GCS, start it again, and then lose a MoE device.

`python head_restart.py DIRECTORY REDIS_PORT` prints one line of JSON: answers before, without a GCS, with the next one,
and after a device was killed; and whether the devices outlived it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import httpx
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions

from asap_ray.actors.app import build_app
from asap_ray.actors.placement import NAMESPACE, running_names

APP = "restart"
PROMPTS = [[(7 * n + k) % 512 for k in range(1 + n)] for n in range(8)]
OBJECT_STORE_BYTES = 80 << 20
DEADLINE_S = 120.0
POLL_S = 0.05


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until(done: Callable[[], bool]) -> None:
    """Wait for it."""
    give_up_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < give_up_s, f"{done.__name__} is not so after {DEADLINE_S:g} s"
        time.sleep(POLL_S)


def pids() -> dict[str, int]:
    """The processes of groups and devices."""
    names = running_names(APP)
    return {
        name: ray.get(ray.get_actor(name, namespace=NAMESPACE).__ray_call__.remote(lambda _: os.getpid()))
        for name in names
    }


class Server:
    """A deployed application, as a client sees it."""

    def __init__(self, directory: str) -> None:
        port = free_port()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S, trust_env=False)
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        parallel = {"dp_groups": 1, "tp": 1, "moe_devices": 1}
        serve.run(build_app({"name": APP, "model": directory, "parallel": parallel}), name=APP, route_prefix="/")
        until(self.is_ready)

    def is_ready(self) -> bool:
        """Whether it says so."""
        return self._client.get("/ready").status_code == httpx.codes.OK

    def is_missing_somebody(self) -> bool:
        """Whether a device is away."""
        return not self.is_ready()

    def answers(self) -> list[str]:
        """The text that follows each prompt."""
        body = {"max_tokens": 1, "temperature": 0}
        replies = [self._client.post("/v1/completions", json={"prompt": ids} | body) for ids in PROMPTS]
        return [reply.raise_for_status().json()["choices"][0]["text"] for reply in replies]


def restart_the_head(cluster: Cluster, server: Server) -> dict[str, object]:
    """Prompts need no GCS; whoever brings a device back does."""
    found: dict[str, object] = {"before": server.answers()}
    before = pids()
    cluster.head_node.kill_gcs_server()
    found["without"] = server.answers()
    cluster.head_node.start_gcs_server()
    found["same"] = pids() == before
    found["restarted"] = server.answers()
    os.kill(before[f"{APP}:moe:0"], signal.SIGKILL)
    until(server.is_missing_somebody)
    until(server.is_ready)
    found["recovered"] = server.answers()
    return found


def main(directory: str, redis_port: str) -> None:
    """End the cluster, whatever happens."""
    os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{redis_port}"
    node = {"num_cpus": 4, "resources": {"NPU": 2}, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
        sys.stdout.write(json.dumps(restart_the_head(cluster, Server(directory))) + "\n")
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
