"""The loop of a synchronous system: attention and experts on the same devices, barriers around each MoE layer (5.1).

The baselines of the paper run this on the same stages, primitives and runtimes as the asynchronous engine. One
micro-batch a step is the plain system: its communication is exposed. With two, each one's communication
overlaps the other's computation (two-batch overlap).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asap_ray.batch import Batch, Duty, Stamps
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
    duty: Duty = field(default_factory=Duty.zero)


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch of the step: one slot of the buffers."""

    batch: Batch
    state: Any
    started_s: float
    stamps: Stamps = field(default_factory=Stamps)


async def serve(worker: Worker) -> None:
    """Step after step, all ranks at once; only `Closed` or a failure ends it."""
    while True:
        batches = await worker.queue.step()
        started_s = worker.runtime.now()
        step = [MicroBatch(batch, await worker.attention.start(batch), started_s) for batch in batches]
        for layer in range(worker.attention.num_layers):
            for slot, micro in enumerate(step):
                await _attend(worker, slot, layer, micro)
            for slot in range(len(step)):
                await _experts(worker, slot)
        for slot, micro in enumerate(step):
            await _finish(worker, slot, micro)


async def _attend(worker: Worker, slot: int, layer: int, micro: MicroBatch) -> None:
    """Wait at the barrier after the layer before, compute up to the next router, send."""
    expert_out = await _combined(worker, slot, micro) if layer > 0 else None
    began_s = worker.runtime.now()
    routed = await worker.attention.attend(micro.state, layer, expert_out)
    computed_s = worker.runtime.now()
    await worker.attention_comm.dispatch_send(slot, layer, routed)
    micro.stamps.attention_s += computed_s - began_s
    micro.stamps.dispatch_s += worker.runtime.now() - computed_s
    worker.duty.add(computed_s - began_s, micro.batch.num_tokens)


async def _experts(worker: Worker, slot: int) -> None:
    """Wait at the barrier before the MoE layer, compute every rank's rows, send results."""
    work = await worker.moe_comm.dispatch_recv(slot)
    began_s = worker.runtime.now()
    results = await worker.experts.super_kernel(work.layer, work.rows_RH, work.num_rows_E)
    worker.duty.add(worker.runtime.now() - began_s, 0)
    await worker.moe_comm.combine_send(work, results)


async def _combined(worker: Worker, slot: int, micro: MicroBatch) -> Any:
    """The results of a layer, once every rank has sent its own."""
    began_s = worker.runtime.now()
    expert_out = await worker.attention_comm.combine_recv(slot)
    micro.stamps.combine_s += worker.runtime.now() - began_s
    return expert_out


async def _finish(worker: Worker, slot: int, micro: MicroBatch) -> None:
    """Tokens out; an empty micro-batch only keeps step. A decode step is not part of a prefill baseline."""
    expert_out = await _combined(worker, slot, micro)
    began_s = worker.runtime.now()
    finished = await worker.attention.finish(micro.state, expert_out)
    ended_s = worker.runtime.now()
    micro.stamps.attention_s += ended_s - began_s
    micro.stamps.total_s = ended_s - micro.started_s
    worker.duty.add(ended_s - began_s, 0)
    if micro.batch.requests:
        await worker.queue.deliver(micro.batch, finished.tokens, micro.stamps)
