"""Memory, file descriptors and the queue of a served instance at ten times what it carries, over HTTP.

    python benchmarks/overload.py [--quick] [--seconds N] [--load TIMES] [--json FILE]

`asap-ray serve`'s own path (Ray Serve, D = 2, E = 2, a random model of 88 M parameters) on this machine. What the
instance carries is measured first, by clients in a closed loop; then prompts come on schedule at `--load` times that,
however many are refused, and nobody heeds Retry-After. Every five seconds each process's resident memory, its own and
shared, and its open files are read from /proc, and the queue from /metrics. Ten minutes; growth counts from the end of
the first tenth (docs/overload.md).

--quick: 20 s, a tiny model, three times what it carries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
from chaos.processes import descendants

from asap_ray.actors.app import build_app
from asap_ray.actors.running import running
from asap_ray.config import ServeConfig, config_to
from asap_ray.models.random_checkpoint import demo, make_random_checkpoint, tiny
from asap_ray.spec import KVCacheSpec, ParallelSpec, PrefillSpec
from asap_ray.workload.http_target import connect

PROMPT_TOKENS = 1000
NUM_PROBES = 16
PROBE_S = 8.0
SAMPLE_S = 5.0
QUEUE = 64
KV_BYTES = 256 << 20
"""A rank's: prefixes fill them within the first tenth."""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Sample:
    """What /proc says of a process."""

    own_mb: float  # RssAnon and RssFile
    shared_mb: float  # RssShmem: buffers between devices, and pages of the KV cache, touched as blocks fill
    num_fds: int


@dataclass(frozen=True)
class Growth:
    """A process, from the end of the first tenth to the end."""

    process: str
    first_own_mb: float
    last_own_mb: float
    first_shared_mb: float
    last_shared_mb: float
    first_fds: int
    last_fds: int


def resident(status: str) -> tuple[float, float]:
    """Own and shared megabytes of /proc/PID/status."""
    kb = {
        key: float(value.split()[0])
        for key, _, value in (line.partition(":") for line in status.splitlines())
        if key in _RESIDENT
    }
    anonymous, file, shared = (kb[key] * 1024 / 1e6 for key in _RESIDENT)
    return anonymous + file, shared


def look() -> Iterator[tuple[str, Sample]]:
    """Every process of this machine's instance: whatever this process has started."""
    for pid in descendants(os.getpid()):
        process = Path(f"/proc/{pid}")
        try:
            title = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            own_mb, shared_mb = resident(process.joinpath("status").read_text())
            num_fds = sum(1 for _ in process.joinpath("fd").iterdir())
        except OSError:
            continue
        if title.startswith("ray::") or "raylet" in title or "gcs_server" in title:
            name = title.split()[0].rpartition("/")[2].partition(".")[0]  # without the method that runs
            yield f"{name} {pid}", Sample(own_mb, shared_mb, num_fds)


_RESIDENT = "RssAnon", "RssFile", "RssShmem"


class Load:
    """Prompts of token ids over HTTP, one token each."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._rng = np.random.default_rng(0)
        self.statuses: Counter[int] = Counter()
        self.retry_after_s: list[int] = []

    async def ask(self) -> None:
        """One prompt."""
        body = {"prompt": self._rng.integers(0, 512, PROMPT_TOKENS).tolist(), "max_tokens": 1}
        try:
            response = await self._client.post("/v1/completions", json=body, timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            self.statuses[0] += 1
            print(f"{type(error).__name__}: {error}", flush=True)
            return
        self.statuses[response.status_code] += 1
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            self.retry_after_s.append(int(response.headers["retry-after"]))

    async def carried_rps(self) -> float:
        """Answers a second while `NUM_PROBES` prompts are always there."""
        began_s = time.monotonic()

        async def client() -> None:
            while time.monotonic() < began_s + PROBE_S:
                await self.ask()

        await asyncio.gather(*[client() for _ in range(NUM_PROBES)])
        rate = self.statuses.total() / (time.monotonic() - began_s)
        self.statuses.clear()
        return rate

    async def flood(self, rps: float, seconds: float) -> None:
        """On schedule, as far as this process gets, whatever is answered; ends when all that were sent are answered."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(round(rps * seconds)):
                await asyncio.sleep(began_s + number / rps - time.monotonic())
                if time.monotonic() > began_s + seconds:
                    break
                tasks.create_task(self.ask())

    async def queued(self) -> int:
        """Prompts that wait."""
        text = (await self._client.get("/metrics", timeout=TIMEOUT_S)).text
        return round(sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(_WAITING)))


_WAITING = "vllm:num_requests_waiting{"


@dataclass(frozen=True)
class Outcome:
    """A run."""

    carried_rps: float
    asked_rps: float
    statuses: Mapping[int, int]
    retry_after_s: float  # the median
    longest_queue: int
    growths: tuple[Growth, ...]
    replaced: tuple[str, ...]  # processes that came or went between the two looks


async def measure(url: str, seconds: float, load: float) -> Outcome:
    """Flood an instance and watch its processes."""
    looks: list[dict[str, Sample]] = []
    queued = []
    async with connect(url) as client:
        clients = Load(client)
        carried_rps = await clients.carried_rps()
        started_s = time.monotonic()
        flood = asyncio.create_task(clients.flood(load * carried_rps, seconds))
        while not flood.done():
            await asyncio.wait([flood], timeout=SAMPLE_S)
            if time.monotonic() - started_s >= seconds / 10:
                looks.append(dict(look()))
            queued.append(await clients.queued())
        flood.result()
    return Outcome(
        carried_rps,
        clients.statuses.total() / seconds,
        dict(clients.statuses),
        statistics.median(clients.retry_after_s or [0]),
        max(queued),
        growths(looks[0], looks[-1]),
        tuple(sorted(looks[0].keys() ^ looks[-1].keys())),
    )


def growths(first: Mapping[str, Sample], last: Mapping[str, Sample]) -> tuple[Growth, ...]:
    """Of processes that were there at the first look and at the last one."""
    return tuple(
        Growth(
            name,
            before.own_mb,
            last[name].own_mb,
            before.shared_mb,
            last[name].shared_mb,
            before.num_fds,
            last[name].num_fds,
        )
        for name, before in first.items()
        if name in last
    )


def table(outcome: Outcome) -> str:
    """What came of the prompts, and a line a process."""
    lines = [
        f"carried {outcome.carried_rps:.1f}/s, asked {outcome.asked_rps:.1f}/s, statuses {dict(outcome.statuses)}, "
        f"Retry-After {outcome.retry_after_s:g} s, longest queue {outcome.longest_queue} of {QUEUE}",
        "",
        "| process | own MB, first | last | shared MB, first | last | files, first | last |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    if outcome.replaced:
        lines.insert(1, f"NOT THE SAME PROCESSES: {', '.join(outcome.replaced)}")
    for each in outcome.growths:
        own = f"{each.first_own_mb:.0f} | {each.last_own_mb:.0f}"
        shared = f"{each.first_shared_mb:.0f} | {each.last_shared_mb:.0f}"
        lines.append(f"| {each.process} | {own} | {shared} | {each.first_fds} | {each.last_fds} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 s")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--load", type=float, default=10.0, help="times what the instance carries")
    parser.add_argument("--port", type=int, default=8437)
    parser.add_argument("--json", type=Path, help="everything goes to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        make_random_checkpoint(Path(directory), **(tiny() if options.quick else demo()))
        config = ServeConfig(
            model=directory,
            name="overload",
            parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2),
            prefill=PrefillSpec(max_tokens=4096, solo_tokens=2048, inflection_tokens=1024),
            max_queued_requests=QUEUE,
            kv_cache=KVCacheSpec(memory_bytes=KV_BYTES),
        )
        with running(config, build_app(config_to(config)), "127.0.0.1", options.port) as url:
            outcome = asyncio.run(measure(url, *((20.0, 3.0) if options.quick else (options.seconds, options.load))))
    print(table(outcome))
    if options.json:
        options.json.write_text(json.dumps(asdict(outcome), indent=1))


if __name__ == "__main__":
    main()
