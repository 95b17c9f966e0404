"""The synchronous systems of an evaluation: the baselines of 5.1 on the devices of the asynchronous ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from asap_ray.backends.virtual.lockstep import LockstepInstance, LockstepSpec, StepPolicy
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.cost.model import CostModel
from asap_ray.evaluation.simulate import OpenLoop, Run
from asap_ray.scheduler import baselines
from asap_ray.scheduler.shares import Cost
from asap_ray.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Settings of the baselines. The paper says neither budget; docs/baselines.md has the effect of each."""

    default_tokens: int = 2048  # of one group in a step, unless one prompt alone has more
    chunked_tokens: int = 2048  # the same of ChunkedPrefill
    chunk_tokens: int = 8192  # 5.1
    strong: baselines.Strong = field(default_factory=baselines.Strong)


def alone_s(cost: CostModel, num_tokens: int) -> float:
    """Kernels and transfers of a whole prompt that is alone in its step, over all layers."""
    return cost.prompt_s(num_tokens) + cost.shape.num_layers * (cost.moe_s(num_tokens) + cost.combine_s(num_tokens))


def simulate_lockstep(spec: LockstepSpec, policy: StepPolicy, trace: Sequence[TraceRequest]) -> Run:
    """Run a trace, sorted by time, to its last answer.

    `queue_s` of a prompt in chunks ends with the step of its first one. Attention and experts share their devices, so
    both duties are the busy share of these.
    """
    runtime = VirtualRuntime()
    load = OpenLoop(runtime, trace, spec.cost.hardware.step_request_overhead_s, partial(alone_s, spec.cost))
    instance = LockstepInstance(runtime, spec, policy, load.deliver)

    async def run() -> None:
        runtime.spawn(instance.serve())
        await load.run(instance.steps.submit)

    runtime.run(run())
    end_s = max(runtime.now(), 1e-9)
    duty = sum(worker.duty.compute_s for worker in instance.workers) / len(instance.workers) / end_s
    return Run(load.rows, end_s, runtime.num_events, attention_duty=duty, moe_duty=duty)


def attention_work(cost: CostModel) -> Cost:
    """Attention of a piece, the fixed part of a batch aside."""
    token_s, pair_s = cost.token_s, cost.pair_s
    return lambda past, now: token_s * now + pair_s * now * (2 * past + now)


POLICIES: Final[dict[str, Callable[[LockstepSpec, Baselines], StepPolicy]]] = {
    "default": lambda spec, own: baselines.default(spec.num_groups, own.default_tokens),
    "default_vllm": lambda spec, own: baselines.default_per_group(spec.num_groups, own.default_tokens),
    "chunked": lambda spec, own: baselines.chunked(spec.num_groups, own.chunked_tokens, own.chunk_tokens),
    "chunked_vllm": lambda spec, own: baselines.chunked_per_group(
        spec.num_groups, own.chunked_tokens, own.chunk_tokens
    ),
    "strong": lambda spec, own: baselines.strong(spec.num_groups, own.strong, attention_work(spec.cost)),
}


def synchronous(name: str, spec: LockstepSpec, trace: Sequence[TraceRequest], own: Baselines = Baselines()) -> Run:
    """Run a trace through one of `POLICIES`."""
    return simulate_lockstep(spec, POLICIES[name](spec, own), trace)
