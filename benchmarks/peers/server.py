"""A server under test: processes of its own, none of which outlives the block that wanted it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from asap_ray.errors import Unavailable

START_S: Final = 400.0
"""vLLM compiles for two minutes when its cache is cold."""

STOP_S: Final = 60.0
POLL_S: Final = 0.2
LOG_LINES: Final = 15

ENDS_WITH_US: Final = ("setpriv", "--pdeathsig", "TERM")
"""Even if this process is killed, the server hears of it."""

PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How to start it: `command` with `--port N` appended, in `environment` and nothing else."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    ready_path: str  # answers 200 once prompts are served
    num_ranks: int = 1  # data-parallel ranks among which a client may choose by header


def adopt_orphans() -> None:
    """Grandchildren whose parents die become children of this process, wherever they are in the tree."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def running(system: System, log: Path) -> Iterator[str]:
    """The URL of the ready server. At the end SIGTERM, then SIGKILL for whatever is left (see `adopt_orphans`).

    Raises:
        Unavailable: it died or was not ready in time; the text ends with the last lines of its log.
    """
    port = _free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [*ENDS_WITH_US, *system.command, "--port", str(port)],
            env=system.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(system, process, url, log)
        yield url
    finally:
        _end(system, process)


def _await_ready(system: System, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + system.ready_path, timeout=5.0, trust_env=False).status_code == httpx.codes.OK:
                return
        if process.poll() is not None:
            raise Unavailable(f"{system.name} ended with status {process.returncode} before it was ready{_tail(log)}")
        time.sleep(POLL_S)
    raise Unavailable(f"{system.name} was not ready after {START_S:g} s{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join([f"; the end of {log}:", *lines])


def _end(system: System, process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, insist; and say who had to be killed."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    deadline_s = time.monotonic() + STOP_S / 4
    while _children() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    left = set()
    while children := _children():  # killing one may hand us its own
        for pid, name in children.items():
            left.add(name)
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    if left:
        print(f"{system.name}: had to kill {', '.join(sorted(left))}", flush=True)


def _children() -> dict[int, str]:
    """Names of this process's living children by pid; dead ones are reaped."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            state, parent, *_ = rest.split()
            if int(parent) == os.getpid():
                found[int(stat.parent.name)] = "" if state == "Z" else name
    for pid in [pid for pid, name in found.items() if not name]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        del found[pid]
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
