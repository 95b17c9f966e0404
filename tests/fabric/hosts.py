"""Hosts on one machine: each has a network, processes, shared memory and a name of its own, and a cable to a bridge."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUBNET = "10.213.7"
BRIDGE = "asapbr7"
PORT = 6391
START_S = 90.0

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "eth0",  # lo is in every namespace, and reaches nobody
}

_BOOT = """
set -e
mount -t tmpfs tmpfs /dev/shm
mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray
hostname {name}
printf "127.0.0.1 localhost\n{address} {name}\n" > /tmp/ray/hosts && mount --bind /tmp/ray/hosts /etc/hosts
ip link set lo up
exec "$@"
"""


def can_have_hosts() -> bool:
    """Whether this process may make namespaces: root may, in most places."""
    made = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, check=False)
    return os.getuid() == 0 and made.returncode == 0


@dataclass(frozen=True)
class Host:
    """One of them, with a Ray node; `pid` is of its first process, as seen from outside."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    pid: int

    def popen(self, command: Sequence[str], log: Path) -> subprocess.Popen[str]:
        """Start a command on this host; it talks through its pipes, and complains in `log`."""
        inside = ["nsenter", "-t", str(self.pid), "--all", f"--wd={Path.cwd()}", *command]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with log.open("w") as errors:
            return subprocess.Popen(inside, env=os.environ | _ENVIRONMENT, stderr=errors, text=True, **pipes)

    def unplug(self) -> None:
        """Nothing passes its cable any more."""
        _ip("link", "set", _network(self.name), "down")


@contextmanager
def hosts(count: int, logs: Path) -> Iterator[list[Host]]:
    """So many, each a Ray node with one NPU; the first is the head. Nothing is left of them afterwards."""
    _ip("link", "add", BRIDGE, "type", "bridge")
    started: list[Host] = []
    try:
        _ip("addr", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for number in range(1, count + 1):
            started.append(_start(number, logs))
            _wait_for_head()
        yield started
    finally:
        for host in started:
            host.process.send_signal(signal.SIGKILL)  # --kill-child: all of its processes with it
            host.process.wait()
        for number in range(1, count + 1):
            for thing in ("link", "netns"):  # one name for the cable and its network; perhaps it was not made
                subprocess.run(["ip", thing, "del", _network(f"host{number}")], check=False, capture_output=True)
        _ip("link", "del", BRIDGE)


def _start(number: int, logs: Path) -> Host:
    name, address = f"host{number}", f"{SUBNET}.{number}"
    network = _network(name)
    _ip("netns", "add", network)
    _ip("link", "add", network, "type", "veth", "peer", "name", "eth0", "netns", network)
    _ip("link", "set", network, "master", BRIDGE, "up")
    _ip("-n", network, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", network, "link", "set", "eth0", "up")
    head, other = ["--head", f"--port={PORT}", "--include-dashboard=false"], [f"--address={SUBNET}.1:{PORT}"]
    role = head if number == 1 else other
    node = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={address}", *role]
    node += ["--num-cpus=0", '--resources={"NPU": 1}', f"--object-store-memory={96 << 20}"]
    own = ["unshare", "--pid", "--ipc", "--uts", "--mount", "--fork", "--mount-proc", "--kill-child"]
    boot = ["bash", "-c", _BOOT.format(name=name, address=address), "boot"]
    command = ["ip", "netns", "exec", network, *own, *boot, *node]
    with (logs / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
    return Host(name, address, process, _first_child(process.pid))


def _wait_for_head() -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((f"{SUBNET}.1", PORT), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the head does not listen on port {PORT} after {START_S:g} s")


def _first_child(pid: int) -> int:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
    raise AssertionError(f"process {pid} has no child")


def _network(name: str) -> str:
    return f"asap-{name}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
