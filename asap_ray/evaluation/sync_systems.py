"""The synchronous systems of an evaluation: the baselines of 5.1 on the devices of the asynchronous ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from asap_ray.backends.virtual.lockstep import LockstepInstance, LockstepSpec, StepPolicy
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.model import CostModel
from asap_ray.evaluation.simulate import Row, Run
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


class _Driver:
    """Feeds one synchronous instance."""

    def __init__(self, spec: LockstepSpec, policy: StepPolicy, trace: Sequence[TraceRequest]) -> None:
        self.runtime = VirtualRuntime()
        self.instance = LockstepInstance(self.runtime, spec, policy, self._deliver)
        self.rows = [Row(request.input_length, request.timestamp_s) for request in trace]
        self._cost = spec.cost
        self._num_left = len(trace)
        self._answered = self.runtime.signal("answers")

    async def run(self) -> None:
        """Submit every request when it arrives, and wait for the last answer."""
        self.runtime.spawn(self.instance.serve())
        for index, row in enumerate(self.rows):
            await self.runtime.sleep(max(0.0, row.arrival_s - self.runtime.now()))
            self.instance.steps.submit(
                Request(request_id=str(index), num_tokens=row.num_tokens, arrival_s=row.arrival_s)
            )
        while self._num_left:
            await self.runtime.park(self._answered)

    def _deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        now = self.runtime.now()
        for request in batch.requests:
            if not request.past_tokens:
                self.rows[int(request.request_id)].queue_s = now - stamps.total_s - request.arrival_s
        for token in tokens:
            row = self.rows[int(token.request_id)]
            row.ttft_s = now - row.arrival_s + self._cost.hardware.step_request_overhead_s
            row.kernel_s = min(now - row.arrival_s - row.queue_s, alone_s(self._cost, row.num_tokens))
            row.stamps = stamps
        self._num_left -= len(tokens)
        self.runtime.wake(self._answered)


def alone_s(cost: CostModel, num_tokens: int) -> float:
    """Kernels and transfers of a whole prompt that is alone in its step, over all layers."""
    return cost.prompt_s(num_tokens) + cost.shape.num_layers * (cost.moe_s(num_tokens) + cost.combine_s(num_tokens))


def simulate_lockstep(spec: LockstepSpec, policy: StepPolicy, trace: Sequence[TraceRequest]) -> Run:
    """Run a trace, sorted by time, to its last answer.

    `queue_s` of a prompt in chunks ends with the step of its first one. Attention and experts share their devices, so
    both duties are the busy share of these.
    """
    driver = _Driver(spec, policy, trace)
    driver.runtime.run(driver.run())
    end_s = max(driver.runtime.now(), 1e-9)
    workers = driver.instance.workers
    duty = sum(worker.duty.compute_s for worker in workers) / len(workers) / end_s
    return Run(driver.rows, end_s, driver.runtime.num_events, attention_duty=duty, moe_duty=duty)


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
