"""The four primitives in virtual time: the flags of Table 2, and seconds instead of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.backends.virtual.stages import Rows
from asap_ray.cost.model import CostModel
from asap_ray.protocol import Routed, WorkItem
from asap_ray.spec import NUM_SLOTS, ParallelSpec


@dataclass(frozen=True, slots=True)
class Ready:
    """A message all of whose ranks have set their bit: what a MoE device chooses among."""

    dp_group: int
    slot: int
    layer: int
    rows: Rows
    ready_s: float


Take = Callable[[Sequence[Ready], int], int]
"""Which ready item a device takes: (items in the order they became ready, region taken last) -> position."""


def round_robin(ready: Sequence[Ready], last: int) -> int:
    """The next region after the one taken last, as the device's scan does; region (i, slot) is number i * 2 + slot."""

    def turn(position: int) -> tuple[bool, int]:
        place = ready[position].dp_group * NUM_SLOTS + ready[position].slot
        return place <= last, place

    return min(range(len(ready)), key=turn) if len(ready) > 1 else 0


class Nic:
    """One direction of the network cards of a rank or device: messages pass one after another."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def through_s(self, ready_s: float, bytes_s: float) -> float:
        """When a message is through that is ready at `ready_s` and whose bytes take `bytes_s`."""
        self._free_s = max(self._free_s, ready_s) + bytes_s
        return self._free_s


class Buffers:
    """The shared buffers of one instance: who has sent, read and replied what."""

    def __init__(self, runtime: VirtualRuntime, cost: CostModel, simulated: ParallelSpec) -> None:
        """`simulated` counts the ranks and devices that run; the cost model knows how many they stand for."""
        self.runtime = runtime
        self.cost = cost
        self.num_ranks, self.num_devices = simulated.tp, simulated.moe_devices
        groups, ranks, devices = range(simulated.dp_groups), range(simulated.tp), range(simulated.moe_devices)
        slots = range(NUM_SLOTS)
        self.num_bits = [[[0 for _ in slots] for _ in groups] for _ in devices]  # of T, per (e, i, slot)
        self.unread = [[[0 for _ in slots] for _ in ranks] for _ in groups]  # messages, per (i, j, slot)
        self.replies = [[[0 for _ in slots] for _ in ranks] for _ in groups]  # of E, per (i, j, slot)
        self.ready: list[list[Ready]] = [[] for _ in devices]
        self.arrived = [runtime.signal(f"a message in MoE device {e}") for e in devices]
        self.replied = [[runtime.signal(f"replies to group {i} rank {j}") for j in ranks] for i in groups]
        self.credited = [[runtime.signal(f"credits of group {i} rank {j}") for j in ranks] for i in groups]
        self.rows_in = [Nic() for _ in devices]
        self.results_in = [Nic() for _ in groups]  # the ranks of a group receive alike


class VirtualAttentionComm:
    """`AttentionComm` of rank (i, j)."""

    def __init__(self, buffers: Buffers, dp_group: int, tp_rank: int) -> None:
        self._buffers = buffers
        self._group = dp_group
        self._rank = tp_rank
        self._unread = buffers.unread[dp_group][tp_rank]
        self._replies = buffers.replies[dp_group][tp_rank]
        self._replied = buffers.replied[dp_group][tp_rank]
        self._nic = Nic()

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`. Writing takes the calling stream, unless a NIC does it."""
        buffers, runtime, rows = self._buffers, self._buffers.runtime, routed.hidden_SH
        await self._room(slot)
        link, write_s = buffers.cost.hardware.link, buffers.cost.dispatch_s(len(rows))
        if link.is_offloaded:
            await runtime.sleep(link.launch_s)
            self._post(slot, layer, rows, write_s - link.launch_s)
        else:
            await runtime.sleep(write_s + link.latency_s)
            for e in range(buffers.num_devices):
                self._set_bit(e, slot, layer, rows)

    def _post(self, slot: int, layer: int, rows: Rows, bytes_s: float) -> None:
        """The NICs take over: this rank's sends it all, each device's receives its share from this rank."""
        buffers, now_s = self._buffers, self._buffers.runtime.now()
        link = buffers.cost.hardware.link
        sent_s = self._nic.through_s(now_s, bytes_s)
        share_s = (buffers.cost.dispatch_recv_s(len(rows)) - link.launch_s) / buffers.num_ranks
        for e in range(buffers.num_devices):
            there_s = max(sent_s, buffers.rows_in[e].through_s(now_s, share_s)) + link.latency_s
            buffers.runtime.call_at(there_s, partial(self._set_bit, e, slot, layer, rows))

    async def _room(self, slot: int) -> None:
        """Wait until every device has read the message before."""
        buffers = self._buffers
        while self._unread[slot]:
            await buffers.runtime.park(buffers.credited[self._group][self._rank])
        self._unread[slot] = buffers.num_devices

    def _set_bit(self, moe_device: int, slot: int, layer: int, rows: Rows) -> None:
        buffers, group = self._buffers, self._group
        num_bits = buffers.num_bits[moe_device][group]
        num_bits[slot] += 1
        if num_bits[slot] == buffers.num_ranks:
            buffers.ready[moe_device].append(Ready(group, slot, layer, rows, buffers.runtime.now()))
            buffers.runtime.wake(buffers.arrived[moe_device])

    async def combine_recv(self, slot: int) -> None:
        """See `AttentionComm`; the rows are read by the next layer's kernels where they lie."""
        while self._replies[slot] < self._buffers.num_devices:
            await self._buffers.runtime.park(self._replied)
        self._replies[slot] = 0


class VirtualMoEComm:
    """`MoEComm` of device e, or of a pool of them as one."""

    def __init__(self, buffers: Buffers, moe_device: int, take: Take = round_robin) -> None:
        self._buffers = buffers
        self._device = moe_device
        self._take = take
        self._last = -1
        self._nic = Nic()

    async def dispatch_recv(self) -> WorkItem:
        """See `MoEComm`; `take` decides which of the ready items comes first."""
        buffers, e = self._buffers, self._device
        ready = buffers.ready[e]
        while not ready:
            await buffers.runtime.park(buffers.arrived[e])
        item = ready.pop(self._take(ready, self._last))
        self._last = item.dp_group * NUM_SLOTS + item.slot
        found_s = buffers.runtime.now()
        link = buffers.cost.hardware.link
        copy_s = link.launch_s if link.is_offloaded else buffers.cost.dispatch_recv_s(item.rows.num_tokens)
        await buffers.runtime.sleep(copy_s)
        buffers.num_bits[e][item.dp_group][item.slot] = 0
        for j, unread in enumerate(buffers.unread[item.dp_group]):
            unread[item.slot] -= 1
            if not unread[item.slot]:
                buffers.runtime.wake(buffers.credited[item.dp_group][j])
        return WorkItem(item.dp_group, item.slot, item.layer, item.rows.num_tokens, None, item.rows, item, found_s)

    async def combine_send(self, work: WorkItem, results_RH: Any) -> None:
        """See `MoEComm`. The stream is free once its own bytes are out; the bits follow when the ranks have all."""
        runtime, cost = self._buffers.runtime, self._buffers.cost
        num_tokens, link = len(results_RH), cost.hardware.link
        write_s, arrive_s = cost.combine_send_s(num_tokens), cost.combine_s(num_tokens)
        if link.is_offloaded:
            posted_s = runtime.now() + link.launch_s
            share_s = (arrive_s - link.launch_s) / self._buffers.num_devices
            sent_s = self._nic.through_s(posted_s, write_s - link.launch_s)
            there_s = self._buffers.results_in[work.dp_group].through_s(posted_s, share_s)
            runtime.call_at(max(sent_s, there_s) + link.latency_s, lambda: self._set_bits(work))
            await runtime.sleep(link.launch_s)
        else:
            runtime.call_at(runtime.now() + max(write_s, arrive_s) + link.latency_s, lambda: self._set_bits(work))
            await runtime.sleep(write_s)

    def _set_bits(self, work: WorkItem) -> None:
        buffers = self._buffers
        for j, replies in enumerate(buffers.replies[work.dp_group]):
            replies[work.slot] += 1
            if replies[work.slot] == buffers.num_devices:
                buffers.runtime.wake(buffers.replied[work.dp_group][j])
