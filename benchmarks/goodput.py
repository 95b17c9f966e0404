"""Prompts answered within their objective at twice the load an instance carries, with and without `slo_ttft_s`.

    python benchmarks/goodput.py [--quick] [--only simulated|measured] [--json FILE]

Simulated: the paper's instance (D=4, T=4, E=16, DeepSeek-V3.2) in virtual time, preset A, an objective of 5 s.
Measured: D = 2, E = 2 of a small random model as Ray actors on this machine, lengths of preset A over 16, the same
objective, both ways in turn. Goodput counts the prompts that have their first token within the objective, a second. The
load an instance carries is what it answers while its queue is never empty. Numbers: docs/overload.md.

--quick: 20 s of one seed; one pair of 8 s of a tiny model, 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import ray

from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.errors import Overloaded
from asap_ray.evaluation.simulate import Run, simulate
from asap_ray.evaluation.systems import UNBOUNDED, attention_work, paper_setup
from asap_ray.models.random_checkpoint import demo, make_random_checkpoint, tiny
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.scheduler.policies import POLICIES, policy_of
from asap_ray.spec import ParallelSpec, PrefillSpec
from asap_ray.workload.lengths import paper_trace
from asap_ray.workload.trace import TraceRequest

LOAD = 2.0
SIMULATED_SLO_S = 5.0
SHRINK = 16
PROBE_S = 10.0
NUM_PROBES = 64


@dataclass(frozen=True)
class Row:
    """One run."""

    kind: str  # simulated or measured
    policy: str
    slo_ttft_s: float | None  # None: everybody is queued
    seed: int
    carried_rps: float
    good_rps: float
    good_tokens_s: float
    refused: float  # share of all prompts
    late: float  # share of those admitted


def row_of(
    kind: str,
    policy: str,
    slo_ttft_s: float | None,
    seed: int,
    carried_rps: float,
    run: Sequence[Outcome],
    slo_s: float,
) -> Row:
    """The numbers of a run, whose first arrival is at 0."""
    duration_s = max(each.arrival_s for each in run)
    good = [each for each in run if each.ttft_s is not None and each.ttft_s <= slo_s]
    num_refused = sum(each.is_refused for each in run)
    return Row(
        kind,
        policy,
        slo_ttft_s,
        seed,
        carried_rps,
        good_rps=len(good) / duration_s,
        good_tokens_s=sum(each.num_tokens for each in good) / duration_s,
        refused=num_refused / len(run),
        late=1 - len(good) / max(1, len(run) - num_refused),
    )


@dataclass(frozen=True)
class Outcome:
    """One prompt."""

    num_tokens: int
    arrival_s: float
    ttft_s: float | None
    is_refused: bool


def simulated(policy: str, seed: int, duration_s: float) -> list[Row]:
    """Without an objective, and with one."""
    probe = _simulate(policy, paper_trace(60.0, 30.0, seed), None)
    carried_rps = len(probe.rows) / probe.end_s
    trace = paper_trace(LOAD * carried_rps, duration_s, seed)
    rows = []
    for slo_ttft_s in (None, SIMULATED_SLO_S):
        run = _simulate(policy, trace, slo_ttft_s)
        outcomes = [Outcome(row.num_tokens, row.arrival_s, row.ttft_s, row.ttft_s is None) for row in run.rows]
        rows.append(row_of("simulated", policy, slo_ttft_s, seed, carried_rps, outcomes, SIMULATED_SLO_S))
    return rows


def _simulate(policy: str, trace: Sequence[TraceRequest], slo_ttft_s: float | None) -> Run:
    spec = paper_setup().spec()
    scheduler = DualBatchScheduler(
        spec.prefill,
        spec.parallel.dp_groups,
        UNBOUNDED,
        UNBOUNDED,
        policy_of(policy, spec.prefill, attention_work(spec.cost)),
        slo_ttft_s=slo_ttft_s,
    )
    return simulate(spec, scheduler, trace)


class Served:
    """Services over one instance, one after the other; what was learnt ends with each."""

    def __init__(self, config: ServeConfig, instance: PrefillInstance) -> None:
        self._config = config
        self._instance = instance
        self._model = served_model(config)
        self._num_asked = 0

    def service(self, slo_ttft_s: float | None) -> PrefillService:
        """A new one."""
        return PrefillService(replace(self._config, slo_ttft_s=slo_ttft_s), self._model, self._instance)

    async def carried_rps(self, seed: int) -> float:
        """What it answers a second while `NUM_PROBES` prompts are always there."""
        lengths = iter(trace_of(1000.0, 60.0, seed))
        service = self.service(None)
        ends_s = time.monotonic() + PROBE_S
        answered = 0

        async def client() -> None:
            nonlocal answered
            while time.monotonic() < ends_s:
                await self._ask(service, next(lengths).input_length)
                answered += 1

        await asyncio.gather(*[client() for _ in range(NUM_PROBES)])
        return answered / (time.monotonic() - ends_s + PROBE_S)

    async def run(self, trace: Sequence[TraceRequest], slo_ttft_s: float | None, slo_s: float) -> list[Outcome]:
        """Every prompt when it is due; who has nothing an objective after the last one came gives up."""
        service = self.service(slo_ttft_s)
        began_s = time.monotonic()
        tasks = []
        for each in trace:
            await asyncio.sleep(began_s + each.timestamp_s - time.monotonic())
            tasks.append(asyncio.create_task(self._ask(service, each.input_length, began_s + each.timestamp_s)))
        _, late = await asyncio.wait(tasks, timeout=slo_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await service.close()
        return [
            Outcome(each.input_length, each.timestamp_s, *((None, False) if task.cancelled() else task.result()))
            for each, task in zip(trace, tasks, strict=True)
        ]

    async def _ask(
        self, service: PrefillService, num_tokens: int, due_s: float | None = None
    ) -> tuple[float | None, bool]:
        self._num_asked += 1
        due_s = due_s or time.monotonic()
        ids = np.random.default_rng(self._num_asked).integers(0, 512, num_tokens, dtype="<i4").tobytes()
        prompt = Request(request_id=f"r{self._num_asked}", num_tokens=num_tokens, arrival_s=due_s, token_ids=ids)
        try:
            async for _ in service.generate([prompt]):
                return time.monotonic() - due_s, False
        except Overloaded:
            return None, True
        raise AssertionError("an answer without a token")


def trace_of(rps: float, duration_s: float, seed: int) -> list[TraceRequest]:
    """Preset A, every length over `SHRINK`."""
    trace = paper_trace(rps, duration_s, seed)
    return [replace(each, input_length=max(1, each.input_length // SHRINK)) for each in trace]


@asynccontextmanager
async def running(config: ServeConfig) -> AsyncIterator[Served]:
    """The instance, started and stopped."""
    instance = PrefillInstance(config, served_model(config))
    await instance.start()

    async def watch() -> None:  # a device that nobody asks after ends itself
        async for change in instance.watch():
            raise AssertionError(f"lost in a measurement: {change}")

    watching = asyncio.create_task(watch())
    try:
        yield Served(config, instance)
        if watching.done():
            watching.result()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await instance.stop()


async def measured(config: ServeConfig, num_pairs: int, duration_s: float, slo_s: float) -> list[Row]:
    """Pairs of runs of one trace; the load carried is measured before each."""
    rows = []
    async with running(config) as served:
        for seed in range(num_pairs):
            carried_rps = await served.carried_rps(seed)
            trace = trace_of(LOAD * carried_rps, duration_s, seed)
            for slo_ttft_s in (None, slo_s):
                outcomes = await served.run(trace, slo_ttft_s, slo_s)
                rows.append(row_of("measured", config.policy, slo_ttft_s, seed, carried_rps, outcomes, slo_s))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Medians, lowest and highest of the seeds."""
    columns = ("carried_rps", "good_rps", "good_tokens_s", "refused", "late")
    lines = [f"| kind | policy | slo_ttft_s | runs | {' | '.join(columns)} |", "|---|---|---|---:|" + "---:|" * 5]
    for key in dict.fromkeys((row.kind, row.policy, row.slo_ttft_s) for row in rows):
        mine = [row for row in rows if (row.kind, row.policy, row.slo_ttft_s) == key]
        cells = [f"{statistics.median(v):.4g} ({min(v):.4g}-{max(v):.4g})" for v in columns_of(mine, columns)]
        lines.append(f"| {' | '.join(map(str, key))} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def columns_of(rows: Sequence[Row], names: Sequence[str]) -> list[list[float]]:
    """Values by column."""
    return [[getattr(row, name) for row in rows] for name in names]


def measure(is_quick: bool) -> list[Row]:
    """On a Ray of its own."""
    ray.init(
        num_cpus=4, resources={"NPU": 4}, object_store_memory=96 << 20, include_dashboard=False, log_to_driver=False
    )
    try:
        with tempfile.TemporaryDirectory() as directory:
            make_random_checkpoint(Path(directory), **(tiny() if is_quick else demo()))
            config = ServeConfig(
                model=directory,
                name="goodput",
                parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2),
                prefill=PrefillSpec(max_tokens=2048, solo_tokens=1024, inflection_tokens=256),
            )
            return asyncio.run(measured(config, *((1, 8.0, 1.0) if is_quick else (5, 30.0, 5.0))))
    finally:
        ray.shutdown()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--only", choices=("simulated", "measured"))
    parser.add_argument("--json", type=Path, help="a row a run goes to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    if options.only != "measured":
        seeds, duration_s = (1, 20.0) if options.quick else (5, 60.0)
        rows += [row for policy in POLICIES for seed in range(seeds) for row in simulated(policy, seed, duration_s)]
    if options.only != "simulated":
        rows += measure(options.quick)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
