"""What the synchronous baselines carry, by their settings: simulated seconds, docs/baselines.md.

    python benchmarks/baselines.py [--quick] [--only SYSTEM] [--seeds 3] [--json FILE]

The paper's instance (32 dies, 8 groups of 4) and its trace. A step is computed in closed form instead of by the
engine's loop, which it is compared with first: the same numbers, some ten times sooner. JSON rows: {system, setting,
own: all settings, criterion: {mean, p99}: RPS within 5 s, one a seed, ttft_s: {RPS: mean, over the seeds}}.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from asap_ray.backends.virtual.lockstep import LockstepSpec, StepPolicy
from asap_ray.batch import Batch, Request
from asap_ray.evaluation.sync_systems import POLICIES, Baselines, synchronous
from asap_ray.evaluation.systems import paper_setup
from asap_ray.scheduler.baselines import Strong
from asap_ray.workload.lengths import paper_trace
from asap_ray.workload.trace import TraceRequest

SLO_S: Final = 5.0
GRID: Final = 10  # rates are tenths of a request a second
HIGHEST: Final = 26 * GRID
RATES: Final = (1.0, 4.0, 8.0, 16.0)
SAME_S: Final = 1e-12
ENDLESS: Final = 1 << 60

Step = Sequence[tuple[Batch, ...]]


def ends_s(spec: LockstepSpec, step: Step) -> list[list[float]]:
    """When each group's micro-batches are done, from the first kernel of the step; all layers are alike.

    Once a layer moves everything by the same time, so do all that follow.
    """
    layer, num_layers = _Layer(spec, step), spec.cost.shape.num_layers
    state = layer.first()
    for left in range(num_layers, 0, -1):
        after = layer.after(state)
        moved = [new - old for new, old in zip(chain(*after), chain(*state), strict=True)]
        state = after
        if max(moved) - min(moved) < SAME_S:
            state = [[time_s + (left - 1) * moved[0] for time_s in times_s] for times_s in state]
            break
    free_s, *results_s = state
    return [
        [max(free, *(done[group] for done in results_s[: slot + 1])) for slot in range(len(results_s))]
        for group, free in enumerate(free_s)
    ]


class _Layer:
    """One layer of a step. A state is when each group is free, then when its results of each slot are there."""

    def __init__(self, spec: LockstepSpec, step: Step) -> None:
        cost, link = spec.cost, spec.cost.hardware.link
        slots = [[batches[slot] for batches in step] for slot in range(len(step[0]))]
        tokens = [[batch.num_tokens for batch in batches] for batches in slots]
        self._attention_s = [[cost.attention_s(batch.requests) for batch in batches] for batches in slots]
        self._write_s = [[link.launch_s if link.is_offloaded else cost.dispatch_s(n) for n in row] for row in tokens]
        self._travel_s = [[cost.dispatch_s(n) + link.latency_s for n in row] for row in tokens]
        self._back_s = [[cost.combine_s(n) + link.latency_s for n in row] for row in tokens]
        self._moe_s = [cost.moe_s(sum(row)) for row in tokens]

    def first(self) -> list[list[float]]:
        """Everybody is free at 0 and waits for nothing."""
        return [[0.0] * len(self._attention_s[0]) for _ in range(len(self._moe_s) + 1)]

    def after(self, state: list[list[float]]) -> list[list[float]]:
        """The state one layer later."""
        free_s, *results_s = state
        groups, slots, barriers_s, done_s = range(len(free_s)), range(len(results_s)), [], []
        for slot in slots:
            begin_s = [max(free_s[i], results_s[slot][i]) + self._attention_s[slot][i] for i in groups]
            barriers_s.append(max(begin_s[i] + self._travel_s[slot][i] for i in groups))
            free_s = [begin_s[i] + self._write_s[slot][i] for i in groups]
        for slot in slots:
            free_s = [max(free, barriers_s[slot]) + self._moe_s[slot] for free in free_s]
            done_s.append(max(free_s))
        return [free_s, *([done_s[slot] + back_s for back_s in self._back_s[slot]] for slot in slots)]


def ttfts_s(spec: LockstepSpec, policy: StepPolicy, trace: Sequence[TraceRequest]) -> Iterator[tuple[int, float]]:
    """(place in the trace, TTFT) of every request, in the order of the answers."""
    hardware, now, arrived, num_answered = spec.cost.hardware, 0.0, 0, 0
    is_idle = True
    while num_answered < len(trace):
        while arrived < len(trace) and trace[arrived].timestamp_s <= now:
            length, arrival_s = trace[arrived].input_length, trace[arrived].timestamp_s
            policy.submit(Request(request_id=str(arrived), num_tokens=length, arrival_s=arrival_s), now)
            arrived += 1
            if is_idle:  # an idle system asks its policy at every arrival
                break
        step = policy.step(now)
        is_idle = step is None
        if step is None:
            wake_at = policy.wake_at(now)
            events_s = [each.timestamp_s for each in trace[arrived : arrived + 1]]
            now = max(now, min(events_s if wake_at is None else [*events_s, wake_at]))
            continue
        now += hardware.step_overhead_s
        ends = ends_s(spec, step)
        for batches, times_s in zip(step, ends, strict=True):
            for batch, time_s in zip(batches, times_s, strict=True):
                for request in (request for request in batch.requests if not request.future_tokens):
                    num_answered += 1
                    answer_s = now + time_s + hardware.step_request_overhead_s
                    yield int(request.request_id), answer_s - request.arrival_s
        now += max(map(max, ends))


@dataclass(frozen=True)
class Setting:
    """One system under one setting."""

    system: str
    setting: str
    own: Baselines

    def run(self, rps: float, seed: int) -> Iterator[float]:
        """TTFTs of five minutes."""
        spec = paper_setup().lockstep_spec()
        policy = POLICIES[self.system](spec, self.own)
        return (ttft_s for _, ttft_s in ttfts_s(spec, policy, paper_trace(rps, 300.0, seed)))

    def meets(self, rps: float, seed: int, criterion: str) -> bool:
        """Whether a run is within the objective; one that cannot be any more ends early."""
        num_requests, total_s, num_late = len(paper_trace(rps, 300.0, seed)), 0.0, 0
        for ttft_s in self.run(rps, seed):
            total_s, num_late = total_s + ttft_s, num_late + (ttft_s > SLO_S)
            if total_s > SLO_S * num_requests if criterion == "mean" else num_late > num_requests // 100:
                return False
        return True

    def highest_rps(self, seed: int, criterion: str) -> float:
        """The highest rate within the objective, to a tenth."""
        low, high = 0, HIGHEST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.meets(middle / GRID, seed, criterion) else (low, middle)
        return low / GRID


def budgets(budget_tokens: Sequence[int]) -> Iterator[Setting]:
    """Default and ChunkedPrefill, one queue or one a group, by what a group's step may hold."""
    for tokens in budget_tokens:
        own = Baselines(default_tokens=tokens, chunked_tokens=tokens)
        for system in ("default", "default_vllm", "chunked", "chunked_vllm"):
            yield Setting(system, f"{tokens // 1024}k", own)


def strong_settings() -> Iterator[Setting]:
    """Strong as it is published, and with one thing changed."""
    best = Strong()
    changes: dict[str, Callable[[Strong], Strong]] = {
        "published": lambda strong: strong,
        "all steps of 4k": lambda strong: replace(strong, budget_tokens=4096, least_tokens=4096),
        "all steps of 8k": lambda strong: replace(strong, least_tokens=8192),
        "steps to 16k": lambda strong: replace(strong, budget_tokens=16384),
        "half of what waits": lambda strong: replace(strong, backlog_part=0.5),
        "no overlap": lambda strong: replace(strong, overlap_tokens=ENDLESS),
        "waits 20 ms for company": lambda strong: replace(strong, delay_s=0.020),
        "a token costs 0.1 ms of standing": lambda strong: replace(strong, token_s=1e-4),
        "a token costs 1 ms of standing": lambda strong: replace(strong, token_s=1e-3),
    }
    for name, change in changes.items():
        yield Setting("strong", name, Baselines(strong=change(best)))


def check() -> None:
    """The closed form gives what the engine's loop gives."""
    spec, trace = paper_setup().lockstep_spec(), paper_trace(6.0, 10.0, seed=1)
    for system, policy in POLICIES.items():
        engine_s = [row.ttft_s or 0.0 for row in synchronous(system, spec, trace).rows]
        ours_s = dict(ttfts_s(spec, policy(spec, Baselines()), trace))
        assert max(abs(engine_s[index] - ours_s[index]) for index in range(len(trace))) < 1e-9, system
    print("every system: the closed form and the engine's loop agree to 1e-9 s")


def main() -> None:
    """Print a line a setting as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two budgets, Strong as published, one seed")
    parser.add_argument("--only", metavar="SYSTEM", choices=POLICIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seeds = range(1 if arguments.quick else arguments.seeds)
    check()
    settings = [*budgets([2048, 4096, 8192, 16384, 32768]), *strong_settings()]
    if arguments.quick:
        settings = [*budgets([2048, 32768]), next(strong_settings())]
    rows = []
    for each in (each for each in settings if arguments.only in (None, each.system)):
        highest = {name: [each.highest_rps(seed, name) for seed in seeds] for name in ("mean", "p99")}
        carried = [rps for rps in RATES if rps <= min(highest["mean"])]
        ttft_s = {rps: statistics.mean(statistics.mean(each.run(rps, seed)) for seed in seeds) for rps in carried}
        rows.append({**asdict(each), "criterion": highest, "ttft_s": ttft_s})
        rates = "  ".join(
            f"{name} {statistics.mean(rps):.1f} ({min(rps):.1f} to {max(rps):.1f})" for name, rps in highest.items()
        )
        times = "  ".join(f"{rps:g}: {1e3 * mean_s:.0f} ms" for rps, mean_s in ttft_s.items())
        print(f"{each.system:13} {each.setting:33} RPS within 5 s: {rates}   mean TTFT at {times}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
