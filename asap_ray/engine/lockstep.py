"""The loop of a synchronous system: attention and experts on the same devices, barriers around each MoE layer (5.1).

The baselines of the paper run this on the same stages, primitives and runtimes as the asynchronous engine. One
micro-batch a step is the plain system: its communication is exposed. With two, each one's communication
overlaps the other's computation (two-batch overlap).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asap_ray.batch import Batch, Duty, Stamps
from asap_ray.laps import ATTENTION, COMBINE, DISPATCH, EXPERTS, FINISH, IDLE, RECEIVE, SEND, START, Laps
from asap_ray.protocol import AttentionComm, AttentionStage, LockstepMoEComm, MoEStage, Runtime, StepQueue


@dataclass(frozen=True, slots=True)
class Worker:
    """A rank of attention that is a MoE device too: what its loop works with."""

    runtime: Runtime
    attention_comm: AttentionComm
    moe_comm: LockstepMoEComm
    attention: AttentionStage
    experts: MoEStage
    queue: StepQueue
    laps: Laps[MicroBatch]
    duty: Duty = field(default_factory=Duty.zero)


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch of the step: one slot of the buffers."""

    batch: Batch
    slot: int
    state: Any
    started_s: float
    layer: int = 0
    stamps: Stamps = field(default_factory=Stamps)


async def serve(worker: Worker) -> None:
    """Step after step, all ranks at once; only `Closed` or a failure ends it."""
    while True:
        step = await _start(worker)
        for layer in range(worker.attention.num_layers):
            for micro in step:
                await _attend(worker, layer, micro)
            for micro in step:
                await _experts(worker, micro)
        for micro in step:
            await _finish(worker, micro)


async def _start(worker: Worker) -> list[MicroBatch]:
    """Wait for the micro-batches of the next step."""
    batches = await worker.queue.step()
    worker.laps.lap(IDLE)
    started_s, step = worker.runtime.now(), []
    for slot, batch in enumerate(batches):
        step.append(MicroBatch(batch, slot, await worker.attention.start(batch), started_s))
        worker.laps.lap(START, step[-1])
    return step


async def _attend(worker: Worker, layer: int, micro: MicroBatch) -> None:
    """Wait at the barrier after the layer before, compute up to the next router, send."""
    expert_out = await _combined(worker, micro) if layer > 0 else None
    micro.layer = layer
    routed = await worker.attention.attend(micro.state, layer, expert_out)
    attention_s = worker.laps.lap(ATTENTION, micro)
    await worker.attention_comm.dispatch_send(micro.slot, layer, routed)
    micro.stamps.attention_s += attention_s
    micro.stamps.dispatch_s += worker.laps.lap(DISPATCH, micro)
    worker.duty.add(attention_s, micro.batch.num_tokens)


async def _experts(worker: Worker, micro: MicroBatch) -> None:
    """Wait at the barrier before the MoE layer, compute every rank's rows, send results."""
    work = await worker.moe_comm.dispatch_recv(micro.slot)
    worker.laps.lap(RECEIVE, micro)
    results = await worker.experts.super_kernel(work.layer, work.rows_RH, work.num_rows_E)
    worker.duty.add(worker.laps.lap(EXPERTS, micro), 0)
    await worker.moe_comm.combine_send(work, results)
    worker.laps.lap(SEND, micro)


async def _combined(worker: Worker, micro: MicroBatch) -> Any:
    """The results of a layer, once every rank has sent its own."""
    expert_out = await worker.attention_comm.combine_recv(micro.slot)
    micro.stamps.combine_s += worker.laps.lap(COMBINE, micro)
    return expert_out


async def _finish(worker: Worker, micro: MicroBatch) -> None:
    """Tokens out; an empty micro-batch only keeps step. A decode step is not part of a prefill baseline."""
    expert_out = await _combined(worker, micro)
    finished = await worker.attention.finish(micro.state, expert_out)
    finish_s = worker.laps.lap(FINISH, micro)
    micro.stamps.attention_s += finish_s
    micro.stamps.total_s = worker.runtime.now() - micro.started_s
    worker.duty.add(finish_s, 0)
    if micro.batch.requests:
        await worker.queue.deliver(micro.batch, finished.tokens, micro.stamps)
