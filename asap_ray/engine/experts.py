"""The loop of one MoE device: whatever (group, layer) is ready, in any order (3.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asap_ray.batch import Duty
from asap_ray.laps import BLOCKED, EXPERTS, RECEIVE, SEND, STARVED, Laps, Recorder, no_recorder
from asap_ray.protocol import MoEComm, MoEStage, Queue, Runtime, WorkItem


@dataclass(frozen=True, slots=True)
class Streams:
    """The laps of a MoE device's three streams."""

    receive: Laps[WorkItem]
    compute: Laps[WorkItem]
    send: Laps[WorkItem]

    @classmethod
    def of(cls, runtime: Runtime, recorder: Recorder = no_recorder) -> Streams:
        """The laps of a device whose time is the runtime's."""
        names = ("receive", "compute", "send")
        return cls(*(Laps[WorkItem](runtime.now, STARVED, recorder(name)) for name in names))

    def restart(self) -> None:
        """See `Laps`, of all three."""
        for laps in (self.receive, self.compute, self.send):
            laps.restart()


@dataclass(frozen=True, slots=True)
class Device:
    """MoE device e: what its loop works with."""

    runtime: Runtime
    comm: MoEComm
    stage: MoEStage
    laps: Streams
    duty: Duty = field(default_factory=Duty.zero)


async def serve(device: Device) -> None:
    """Three streams joined by two one-place queues (3.4.1); only `Closed` or a failure ends them."""
    ready, done = device.runtime.queue(1), device.runtime.queue(1)
    await device.runtime.gather(_receive(device, ready), _compute(device, ready, done), _send(device, done))


async def serve_sequential(device: Device) -> None:
    """One stream; the ablation of 5.5.2."""
    laps = device.laps.compute
    while True:
        work = await _dispatch_recv(device, laps)
        await device.comm.combine_send(work, await _super_kernel(device, work))
        laps.lap(SEND, work)


async def _receive(device: Device, ready: Queue) -> None:
    laps = device.laps.receive
    while True:
        work = await _dispatch_recv(device, laps)
        await ready.put(work)
        laps.lap(BLOCKED)


async def _compute(device: Device, ready: Queue, done: Queue) -> None:
    laps = device.laps.compute
    while True:
        work = await ready.get()
        laps.lap(STARVED)
        await done.put((work, await _super_kernel(device, work)))
        laps.lap(BLOCKED)


async def _send(device: Device, done: Queue) -> None:
    laps = device.laps.send
    while True:
        work, results = await done.get()
        laps.lap(STARVED)
        await device.comm.combine_send(work, results)
        laps.lap(SEND, work)


async def _dispatch_recv(device: Device, laps: Laps[WorkItem]) -> WorkItem:
    work = await device.comm.dispatch_recv()
    laps.lap_until(work.found_s, STARVED)
    laps.lap(RECEIVE, work)
    return work


async def _super_kernel(device: Device, work: WorkItem) -> Any:
    results = await device.stage.super_kernel(work.layer, work.rows_RH, work.num_rows_E)
    device.duty.add(device.laps.compute.lap(EXPERTS, work), work.num_rows)
    return results
