"""The four primitives step by step, with values: as csrc/host has them, and an await between any two steps.

Rules are those of docs/verify.md. `Broken` leaves one out, so that a test can show that it is missed.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asap_ray.protocol import Routed, WorkItem
from asap_ray.spec import NUM_SLOTS, ParallelSpec
from tests.faults.runtime import Lock, ShakenRuntime

Rows = dict[int, Any]
"""By row of the sender: what it is."""

UNFINISHED = "unfinished"


class Broken(enum.Enum):
    """A mistake in the protocol."""

    NOTHING = "nothing"
    NO_RESEND = "what a dead device owed is not sent again"
    RESEND_BLIND = "what the dead device had answered is not taken first"
    OWED_ONLY = "a rank that is owed nothing sends no empty message"
    KEEP_OLDER = "a device keeps a message that is older than its neighbour's"
    SAME_EPOCH = "a new group has the epoch of the dead one"
    CREDIT_EARLY = "the credit is given before the rows are read"


@dataclass(slots=True)
class Message:
    """In a device's buffer, from one rank."""

    epoch: int = 0
    sequence: int = 0
    layer: int = 0
    rows: Any = field(default_factory=dict)


class DeviceBuffer:
    """Of one incarnation of a MoE device."""

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int, int], Message] = defaultdict(Message)  # (i, j, slot)
        self.words: dict[tuple[int, int], set[int]] = defaultdict(set)  # (i, slot) -> ranks


class RankBuffer:
    """Of one incarnation of an attention rank."""

    def __init__(self) -> None:
        self.words: dict[int, set[int]] = defaultdict(set)  # slot -> devices
        self.replies: dict[tuple[int, int], Message] = defaultdict(Message)  # (slot, e)


@dataclass(slots=True)
class Flight:
    """The message of one slot of a rank."""

    sequence: int = 0
    layer: int = 0
    rows: dict[int, Rows] = field(default_factory=dict)  # by device
    unsent: set[int] = field(default_factory=set)
    owing: set[int] = field(default_factory=set)
    results: dict[int, Rows] = field(default_factory=dict)


class FaultyAttentionComm:
    """`AttentionComm` of rank (i, j)."""

    def __init__(self, runtime: ShakenRuntime, who: tuple[int, int, int], tp: int, broken: Broken) -> None:
        """`who` is group, rank and epoch."""
        self.buffer = RankBuffer()
        self.devices: dict[int, DeviceBuffer] = {}  # once it serves
        self._runtime = runtime
        self._tp = tp
        self._group, self._rank, self._epoch = who
        self._broken = broken
        self._lock = Lock(runtime)
        self._flights = [Flight() for _ in range(NUM_SLOTS)]

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`; `hidden_SH` holds the rows of each device."""
        flight = self._flights[slot]
        async with self._lock:
            flight.sequence += 1
            flight.layer, flight.rows = layer, routed.hidden_SH
            flight.unsent = set(self.devices)
            flight.owing = {e for e, rows in flight.rows.items() if rows}
            flight.results = {}
        while flight.unsent:
            seen = self._runtime.rings
            async with self._lock:
                for e in sorted(flight.unsent):
                    if self._rank not in self.devices[e].words[self._group, slot]:
                        await self._write(slot, e, flight.rows.get(e, {}))
                        flight.unsent.discard(e)
            if flight.unsent:
                await self._runtime.until_rung(seen)

    async def combine_recv(self, slot: int) -> dict[int, Rows]:
        """See `AttentionComm`: the results of each device."""
        flight = self._flights[slot]
        while True:
            seen = self._runtime.rings
            async with self._lock:
                for e in sorted(flight.owing):
                    if self._take_reply(slot, e):
                        await self._runtime.pause()
                        flight.owing.discard(e)
                if not flight.owing:
                    return {e: await self._result(slot, e) for e, rows in flight.rows.items() if rows}
            await self._runtime.until_rung(seen)

    async def replace_device(self, e: int, buffer: DeviceBuffer) -> None:
        """Rules 2 to 4: device e is dead, and this is its successor's buffer."""
        async with self._lock:
            if self.devices[e] is buffer:
                return
            self.devices[e] = buffer
            for slot, flight in enumerate(self._flights):
                if self._broken is not Broken.RESEND_BLIND and self._take_reply(slot, e):
                    flight.owing.discard(e)
                await self._send_again(slot, e)
        self._runtime.ring()

    async def _send_again(self, slot: int, e: int) -> None:
        flight = self._flights[slot]
        was_sent = flight.sequence > 0 and e not in flight.unsent
        if not was_sent or self._broken is Broken.NO_RESEND:
            return
        if e in flight.owing:
            await self._write(slot, e, flight.rows[e])
        elif self._tp > 1 and self._broken is not Broken.OWED_ONLY:
            await self._write(slot, e, {})

    async def _write(self, slot: int, e: int, rows: Rows) -> None:
        """Steps 2 to 5 of async-dispatch-send."""
        device, flight = self.devices[e], self._flights[slot]
        message = device.messages[self._group, self._rank, slot]
        message.rows = UNFINISHED
        await self._runtime.pause()
        message.rows = dict(rows)
        message.epoch, message.sequence, message.layer = self._epoch, flight.sequence, flight.layer
        await self._runtime.pause()
        device.words[self._group, slot].add(self._rank)
        self._runtime.ring()

    def _take_reply(self, slot: int, e: int) -> bool:
        """Step 2 of async-combine-recv."""
        if e not in self.buffer.words[slot]:
            return False
        self.buffer.words[slot].discard(e)
        reply, flight = self.buffer.replies[slot, e], self._flights[slot]
        return (reply.epoch, reply.sequence) == (self._epoch, flight.sequence)

    async def _result(self, slot: int, e: int) -> Rows:
        """Step 3, looked at twice: nobody may write them now."""
        rows = self.buffer.replies[slot, e].rows
        assert rows != UNFINISHED, f"rank {self._group}.{self._rank} reads unfinished results of device {e}"
        await self._runtime.pause()
        assert self.buffer.replies[slot, e].rows is rows, f"results of device {e} change under {self._group}"
        return dict(rows)


@dataclass(frozen=True, slots=True)
class Group:
    """An incarnation of a DP group as devices know it."""

    epoch: int
    buffers: tuple[RankBuffer, ...]


class FaultyMoEComm:
    """`MoEComm` of device e."""

    def __init__(
        self, runtime: ShakenRuntime, e: int, parallel: ParallelSpec, groups: Mapping[int, Group], broken: Broken
    ) -> None:
        self.buffer = DeviceBuffer()
        self._runtime = runtime
        self._device = e
        self._parallel = parallel
        self._groups = dict(groups)
        self._broken = broken

    def replace_group(self, i: int, group: Group) -> None:
        """Group i is dead, and this is its successor."""
        self._groups[i] = group
        self._runtime.ring()

    async def dispatch_recv(self) -> WorkItem:
        """See `MoEComm`; any complete message may come first."""
        while not (place := self._find()):
            await self._runtime.until_rung(self._runtime.rings)
        i, slot = place
        await self._runtime.pause()
        messages = [self.buffer.messages[i, j, slot] for j in range(self._parallel.tp)]
        heads = {(message.epoch, message.sequence, message.layer) for message in messages}
        assert len(heads) == 1, f"device {self._device}: ranks of group {i} slot {slot} disagree: {heads}"
        if self._broken is Broken.CREDIT_EARLY:
            self._credit(i, slot, set(range(self._parallel.tp)))
        rows = []
        for message in messages:
            assert message.rows != UNFINISHED, f"device {self._device} reads unfinished rows of group {i}"
            rows.append(dict(message.rows))
            await self._runtime.pause()
            assert message.rows == rows[-1], f"rows of group {i} slot {slot} change under device {self._device}"
        self._credit(i, slot, set(range(self._parallel.tp)))
        ((epoch, sequence, layer),) = heads
        num_rows = sum(map(len, rows))
        return WorkItem(i, slot, layer, num_rows, None, rows, (epoch, sequence), self._runtime.now())

    async def combine_send(self, work: WorkItem, results_RH: list[Rows]) -> None:
        """See `MoEComm`; results for a dead epoch are dropped."""
        epoch, sequence = work.ticket
        group = self._groups[work.dp_group]
        if group.epoch != epoch:
            return
        for buffer, rows in zip(group.buffers, results_RH, strict=True):
            if not rows:
                continue
            reply = buffer.replies[work.slot, self._device]
            reply.rows = UNFINISHED
            await self._runtime.pause()
            reply.rows = rows
            reply.epoch, reply.sequence = epoch, sequence
            await self._runtime.pause()
            buffer.words[work.slot].add(self._device)
            self._runtime.ring()

    def _find(self) -> tuple[int, int] | None:
        places = [place for place in sorted(self.buffer.words) if self._fresh(*place) == self._parallel.tp]
        return self._runtime.random.choice(places) if places else None

    def _fresh(self, i: int, slot: int) -> int:
        """How many ranks' messages are there, once those of the dead and the older are dropped (rule 5)."""
        ranks = self.buffer.words[i, slot]
        epoch = self._groups[i].epoch
        messages = {j: self.buffer.messages[i, j, slot] for j in ranks}
        living = {j for j, message in messages.items() if message.epoch == epoch}
        newest = max((messages[j].sequence for j in living), default=0)
        is_kept = self._broken is Broken.KEEP_OLDER
        fresh = {j for j in living if is_kept or messages[j].sequence == newest}
        if fresh != ranks:
            self._credit(i, slot, ranks - fresh)
        return len(fresh)

    def _credit(self, i: int, slot: int, ranks: set[int]) -> None:
        self.buffer.words[i, slot] -= ranks
        self._runtime.ring()
