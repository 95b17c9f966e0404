"""A whole instance of the engine's own loops over the primitives of `comm`, whose processes die and are replaced."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from asap_ray.backends.virtual.door import VirtualDoor
from asap_ray.batch import Batch, Request
from asap_ray.engine import attention, experts
from asap_ray.laps import Laps, State
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.faults.comm import Broken, FaultyAttentionComm, FaultyMoEComm, Group
from tests.faults.model import Attention, Barrier, Experts
from tests.faults.runtime import Process, ShakenRuntime

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8)


@dataclass
class GroupLife:
    """An incarnation of a DP group."""

    process: Process
    epoch: int
    comms: list[FaultyAttentionComm]
    door: VirtualDoor
    is_serving: bool = False

    @property
    def seen(self) -> Group:
        """As devices know it."""
        return Group(self.epoch, tuple(comm.buffer for comm in self.comms))


@dataclass
class DeviceLife:
    """An incarnation of a MoE device."""

    process: Process
    comm: FaultyMoEComm
    is_serving: bool = False


class Instance:
    """D groups and E devices, and the owner who replaces what is lost (`actors.recovery`, in the same order)."""

    def __init__(self, runtime: ShakenRuntime, parallel: ParallelSpec, broken: Broken, num_batches: int) -> None:
        self.runtime = runtime
        self.broken = broken
        self._parallel = parallel
        self._epoch = 0
        self._absent = {("group", i) for i in range(parallel.dp_groups)}
        self._absent |= {("device", e) for e in range(parallel.moe_devices)}
        self.work = [self._batches(i, num_batches) for i in range(parallel.dp_groups)]  # yet to be answered
        self.devices: list[DeviceLife] = []
        self.groups = [self._new_group(i) for i in range(parallel.dp_groups)]
        self.devices = [self._new_device(e) for e in range(parallel.moe_devices)]

    async def run(self) -> None:
        """Until every batch is answered; whoever is lost meanwhile is replaced."""
        while any(self.work):
            if self._joined():
                await self.runtime.until_rung(self.runtime.rings)
            else:
                await self._replace_and_join()

    def lose(self, who: int) -> None:
        """SIGKILL of group `who`, or of a device behind the groups."""
        lives: list[GroupLife | DeviceLife] = [*self.groups, *self.devices]
        self.runtime.note(f"lost {lives[who].process.name}")
        lives[who].process.kill()

    def _joined(self) -> bool:
        """Whether all live, and those that are new have been joined to the others."""
        return not self._absent and all(life.process.is_alive for life in (*self.groups, *self.devices))

    async def _replace_and_join(self) -> None:
        """Successors, then the steps of `PrefillInstance.join`; begun anew if one more is lost on the way."""
        await self.runtime.pause()
        for i, group in enumerate(self.groups):
            if not group.process.is_alive:
                self.groups[i] = self._new_group(i)
                self._absent.add(("group", i))
        for e, device in enumerate(self.devices):
            if not device.process.is_alive:
                self.devices[e] = self._new_device(e)
                self._absent.add(("device", e))
        for step in self._steps():
            if not await step():
                return
        self._absent.clear()

    def _steps(self) -> list[Callable[[], Coroutine[Any, Any, bool]]]:
        new_groups = sorted(i for kind, i in self._absent if kind == "group")
        new_devices = sorted(e for kind, e in self._absent if kind == "device")
        steps = [partial(self._serve_device, e) for e in new_devices]
        steps += [partial(self._tell_of_group, e, i) for i in new_groups for e in range(self._parallel.moe_devices)]
        steps += [partial(self._tell_of_device, i, e) for e in new_devices for i in range(self._parallel.dp_groups)]
        return [*steps, *(partial(self._serve_group, i) for i in new_groups)]

    async def _call(self, process: Process, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Something a process is asked to do; False if it is lost before it has."""
        done = False

        async def do() -> None:
            nonlocal done
            await self.runtime.pause()
            await work()
            done = True
            self.runtime.ring()

        if process.is_alive:
            process.spawn(do())
        while not done and process.is_alive:
            await self.runtime.until_rung(self.runtime.rings)
        return done

    async def _serve_device(self, e: int) -> bool:
        life = self.devices[e]

        async def serve() -> None:
            if life.is_serving:
                return
            for i, group in enumerate(self.groups):
                life.comm.replace_group(i, group.seen)
            life.is_serving = True
            streams = experts.Streams.of(life.process)
            life.process.spawn(experts.serve(experts.Device(life.process, life.comm, Experts(self.runtime), streams)))

        return await self._call(life.process, serve)

    async def _tell_of_group(self, e: int, i: int) -> bool:
        life, group = self.devices[e], self.groups[i].seen

        async def tell() -> None:
            life.comm.replace_group(i, group)

        return await self._call(life.process, tell)

    async def _tell_of_device(self, i: int, e: int) -> bool:
        life, buffer = self.groups[i], self.devices[e].comm.buffer

        async def tell() -> None:
            if life.is_serving:  # else it is told when it begins to serve
                for comm in life.comms:
                    await comm.replace_device(e, buffer)

        return await self._call(life.process, tell)

    async def _serve_group(self, i: int) -> bool:
        life = self.groups[i]

        async def serve() -> None:
            if life.is_serving:
                return
            life.is_serving = True
            barrier = Barrier(self.runtime, self._parallel.tp)
            for j, comm in enumerate(life.comms):
                comm.devices = {e: device.comm.buffer for e, device in enumerate(self.devices)}
                stage = Attention(self.runtime, self._parallel, barrier, j)
                laps = Laps[attention.Flight](self.runtime.now, State.IDLE)
                rank = attention.Rank(life.process, comm, stage, life.door.rank(j), laps)
                life.process.spawn(attention.serve(rank))

        return await self._call(life.process, serve)

    def _new_group(self, i: int) -> GroupLife:
        self._epoch += self.broken is not Broken.SAME_EPOCH
        process = Process(self.runtime, f"group {i} epoch {self._epoch}")
        tp = self._parallel.tp
        comms = [FaultyAttentionComm(self.runtime, (i, j, self._epoch), tp, self.broken) for j in range(tp)]
        door = VirtualDoor(self.runtime, PREFILL, i, lambda batch, _tokens, _stamps: self._answered(i, batch))
        for batch in self.work[i]:
            door.put(batch)
        return GroupLife(process, self._epoch, comms, door)

    def _new_device(self, e: int) -> DeviceLife:
        groups = {i: group.seen for i, group in enumerate(self.groups)}
        return DeviceLife(
            Process(self.runtime, f"device {e}"),
            FaultyMoEComm(self.runtime, e, self._parallel, groups, self.broken),
        )

    def _answered(self, i: int, batch: Batch) -> None:
        self.runtime.note(f"answered {batch.requests[0].request_id}")
        assert batch in self.work[i], "a batch is answered twice"
        self.work[i].remove(batch)
        self.runtime.ring()

    def _batches(self, i: int, count: int) -> list[Batch]:
        draw = self.runtime.random.randint
        return [
            Batch((Request(request_id=f"{100 * (i + 1) + n}", num_tokens=draw(1, 9), arrival_s=0.0),))
            for n in range(count)
        ]
