"""How long an instance takes to recover from a killed process, under load, and where the time goes.

    python benchmarks/recovery.py [--quick] [--kills N] [--json FILE]

D = 2 groups, E = 2 MoE devices of a small random model as Ray actors on this machine; eight clients ask one prompt
after the other. Each time one process gets SIGKILL. Times from the kill: until it is `found`; until its successor has
a buffer (`start`: Ray, Python, imports, weights); until it is `joined` to the others; until a prompt is answered after
that. "aside" is all but `start`. Every answer is compared with the one before any kill.

--quick: one device and one group, once each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import ray
import torch

from asap_ray.actors.losses import MAX_RESTARTS
from asap_ray.actors.placement import NAMESPACE, device_names, group_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.recovery import Registered
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny
from asap_ray.spec import ParallelSpec

CLIENTS = 8
PROMPTS = [[(7 * n + k) % 512 for k in range(20 + n)] for n in range(CLIENTS)]
SETTLE_S = 2.0
PATIENCE_S = 120.0


class TimedInstance(PrefillInstance):
    """Notes when successors were there and when they were joined."""

    registered_s = 0.0
    joined_s = 0.0

    async def join(self, names: Collection[str], registered: Registered) -> None:
        """See `PrefillInstance`."""
        self.registered_s = time.monotonic()
        await super().join(names, registered)
        self.joined_s = time.monotonic()


@dataclass(frozen=True)
class Row:
    """One kill; milliseconds, each from the point before."""

    killed: str
    found_ms: float
    start_ms: float
    joined_ms: float
    answered_ms: float
    slowest_prompt_ms: float

    @property
    def aside_ms(self) -> float:
        """All but the start of the process."""
        return self.found_ms + self.joined_ms + self.answered_ms


class Load:
    """Clients in a closed loop; what each was answered, and when."""

    def __init__(self, service: PrefillService) -> None:
        self._service = service
        self._expected: dict[int, int] = {}
        self._num_asked = 0
        self.answers: list[tuple[float, float]] = []  # when, and after how long

    async def client(self, number: int) -> None:
        """One prompt after the other."""
        ids = torch.tensor(PROMPTS[number], dtype=torch.int32).numpy().tobytes()
        while True:
            self._num_asked += 1
            asked_s = time.monotonic()
            prompt = Request(
                request_id=f"r{self._num_asked}", num_tokens=len(PROMPTS[number]), arrival_s=asked_s, token_ids=ids
            )
            (event,) = [event async for event in self._service.generate([prompt])]
            if self._expected.setdefault(number, event.token.token_id) != event.token.token_id:
                raise AssertionError(f"prompt {number}: {event.token.token_id}, at first {self._expected[number]}")
            self.answers.append((time.monotonic(), time.monotonic() - asked_s))

    async def first_answer_after(self, at_s: float) -> float:
        """When the first prompt was answered after a point of time."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.answers or self.answers[-1][0] <= at_s:
                await asyncio.sleep(0.001)
        return next(when for when, _ in self.answers if when > at_s)


async def kill(name: str, instance: TimedInstance, load: Load) -> Row:
    """Kill the process of a device and follow what happens."""
    pid = await ray.get_actor(name, namespace=NAMESPACE).__ray_call__.remote(lambda _: os.getpid())
    load.answers.clear()
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while not instance.missing():
            await asyncio.sleep(0.001)
        found_s = time.monotonic()
        while instance.missing():
            await asyncio.sleep(0.001)
    answered_s = await load.first_answer_after(instance.joined_s)
    await asyncio.sleep(SETTLE_S)  # what waited has been answered
    points = (killed_s, found_s, instance.registered_s, instance.joined_s, answered_s)
    steps_ms = [1e3 * (after - before) for before, after in pairwise(points)]
    return Row(name.partition(":")[2], *steps_ms, slowest_prompt_ms=1e3 * max(took for _, took in load.answers))


@asynccontextmanager
async def running(config: ServeConfig) -> AsyncIterator[tuple[TimedInstance, Load]]:
    """The instance under load."""
    instance = TimedInstance(config, served_model(config))
    await instance.start()
    service = PrefillService(config, served_model(config), instance)
    load = Load(service)

    async def watch() -> None:
        async for change in instance.watch():
            if change.lost:
                service.lose(change.group, change.lost)
            else:
                service.restore(change.group)

    tasks = [asyncio.create_task(each) for each in (watch(), *map(load.client, range(CLIENTS)))]
    try:
        await load.first_answer_after(0.0)
        yield instance, load
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.close()
        await instance.stop()


async def measure(config: ServeConfig, num_kills: int) -> list[Row]:
    """Devices and groups in turn, so that none is lost too often."""
    victims = [*device_names(config), *group_names(config)][:: 2 if num_kills == 1 else 1]
    async with running(config) as (instance, load):
        return [await kill(name, instance, load) for _ in range(num_kills) for name in victims]


def table(rows: Sequence[Row]) -> str:
    """Medians and ranges by kind of device."""
    columns = ("found_ms", "start_ms", "joined_ms", "answered_ms", "aside_ms", "slowest_prompt_ms")
    lines = [f"| killed | kills | {' | '.join(column.replace('_ms', ', ms') for column in columns)} |"]
    lines.append("|---|---:|" + "---:|" * len(columns))
    for kind, name in (("moe", "MoE device"), ("attention", "attention group")):
        mine = [row for row in rows if row.killed.startswith(kind)]
        cells = []
        for column in columns:
            values = [getattr(row, column) for row in mine]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")
        lines.append(f"| {name} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one device and one group, once each")
    parser.add_argument(
        "--kills", type=int, choices=range(1, MAX_RESTARTS + 1), default=MAX_RESTARTS, help="of each of the four"
    )  # one more within a minute, and its owner gives a device up
    parser.add_argument("--json", type=Path, help="a row a kill goes to this file")
    options = parser.parse_args()
    parallel = ParallelSpec(dp_groups=2, tp=1, moe_devices=2)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.init(
        num_cpus=4, resources={"NPU": 4}, object_store_memory=96 << 20, include_dashboard=False, log_to_driver=False
    )
    try:
        with tempfile.TemporaryDirectory() as directory:
            make_random_checkpoint(Path(directory), **tiny())
            config = ServeConfig(model=directory, parallel=parallel, name="recovery")
            rows = asyncio.run(measure(config, 1 if options.quick else options.kills))
    finally:
        ray.shutdown()
    print(table(rows))
    if options.json:
        found = [asdict(row) | {"aside_ms": row.aside_ms, "kind": "measured"} for row in rows]
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
