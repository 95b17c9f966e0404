"""The loop of one MoE device: whatever (group, layer) is ready, in any order (3.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asap_ray.batch import Duty
from asap_ray.protocol import MoEComm, MoEStage, Queue, Runtime, WorkItem


@dataclass(frozen=True, slots=True)
class Device:
    """MoE device e: what its loop works with."""

    runtime: Runtime
    comm: MoEComm
    stage: MoEStage
    duty: Duty = field(default_factory=Duty.zero)


async def serve(device: Device) -> None:
    """Three streams joined by two one-place queues (3.4.1); only `Closed` or a failure ends them."""
    ready, done = device.runtime.queue(1), device.runtime.queue(1)
    await device.runtime.gather(_receive(device, ready), _compute(device, ready, done), _send(device, done))


async def serve_sequential(device: Device) -> None:
    """One stream; the ablation of 5.5.2."""
    while True:
        work = await device.comm.dispatch_recv()
        await device.comm.combine_send(work, await _super_kernel(device, work))


async def _receive(device: Device, ready: Queue) -> None:
    while True:
        await ready.put(await device.comm.dispatch_recv())


async def _compute(device: Device, ready: Queue, done: Queue) -> None:
    while True:
        work = await ready.get()
        await done.put((work, await _super_kernel(device, work)))


async def _send(device: Device, done: Queue) -> None:
    while True:
        work, results = await done.get()
        await device.comm.combine_send(work, results)


async def _super_kernel(device: Device, work: WorkItem) -> Any:
    began_s = device.runtime.now()
    results = await device.stage.super_kernel(work.layer, work.rows_RH, work.num_rows_E)
    device.duty.add(device.runtime.now() - began_s, len(work.rows_RH))
    return results
