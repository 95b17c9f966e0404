"""A whole instance of the engine's own loops over the primitives of `comm`, whose processes die and are replaced."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asap_ray.backends.virtual.door import VirtualDoor
from asap_ray.batch import Batch, Request, Token
from asap_ray.engine import attention, experts
from asap_ray.laps import Laps, State
from asap_ray.protocol import Finished, Routed
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.faults.comm import Broken, FaultyAttentionComm, FaultyMoEComm, Group, Rows
from tests.faults.runtime import Process, ShakenRuntime

NUM_LAYERS, NUM_EXPERTS, TOP_K = 3, 5, 2
MODULUS = 1_000_003
PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8)


def experts_of(layer: int, value: int) -> list[tuple[int, int]]:
    """The router: distinct experts of a value in a layer, each with its weight."""
    first = (value * 7 + layer) % NUM_EXPERTS
    return [((first + k) % NUM_EXPERTS, 1 + (value + k) % 3) for k in range(TOP_K)]


def expert(x: int, layer: int, value: int) -> int:
    """What expert x makes of a row."""
    return (value * (x + 2) + layer) % MODULUS


def device_of(x: int, num_devices: int) -> int:
    """Who has expert x."""
    return x * num_devices // NUM_EXPERTS


def next_value(layer: int, value: int) -> int:
    """One layer of the undivided model."""
    return (value + sum(weight * expert(x, layer, value) for x, weight in experts_of(layer, value))) % MODULUS


def answer(value: int) -> int:
    """The undivided model."""
    for layer in range(NUM_LAYERS):
        value = next_value(layer, value)
    return value


@dataclass(slots=True)
class Pass:
    """A batch on one rank: the values of its share of the tokens, as they are and as they must be."""

    batch: Batch
    values: list[int]


class Barrier:
    """The collectives of one incarnation of a group."""

    def __init__(self, runtime: ShakenRuntime, size: int) -> None:
        self._runtime = runtime
        self._size = size
        self._here = self._round = 0

    async def wait(self) -> None:
        """Until all ranks are here."""
        self._here += 1
        round_ = self._round
        if self._here == self._size:
            self._here, self._round = 0, self._round + 1
            self._runtime.ring()
        while self._round == round_:
            await self._runtime.until_rung(self._runtime.rings)


@dataclass
class Attention:
    """`AttentionStage` of rank j."""

    runtime: ShakenRuntime
    parallel: ParallelSpec
    barrier: Barrier
    tp_rank: int
    num_layers: int = NUM_LAYERS

    async def start(self, batch: Batch) -> Pass:
        """See `AttentionStage`: every T-th token is this rank's."""
        numbers = [int(request.request_id) * 100 + n for request in batch.requests for n in range(request.num_tokens)]
        return Pass(batch, numbers[self.tp_rank :: self.parallel.tp])

    async def attend(self, state: Pass, layer: int, expert_out: dict[int, Rows] | None) -> Routed:
        """See `AttentionStage`."""
        await self.barrier.wait()
        await self.runtime.pause()
        if expert_out is not None:
            self._add(state, layer - 1, expert_out)
        rows: dict[int, Rows] = {e: {} for e in range(self.parallel.moe_devices)}
        for n, value in enumerate(state.values):
            for x, weight in experts_of(layer, value):
                rows[device_of(x, self.parallel.moe_devices)].setdefault(n, []).append((x, weight, value))
        return Routed(rows, None, None)

    async def finish(self, state: Pass, expert_out: dict[int, Rows]) -> Finished:
        """See `AttentionStage`."""
        self._add(state, NUM_LAYERS - 1, expert_out)
        await self.barrier.wait()
        requests = state.batch.requests
        return Finished(
            tuple(Token(request_id=each.request_id, token_id=0, finish_reason="stop") for each in requests), None
        )

    def _add(self, state: Pass, layer: int, results: dict[int, Rows]) -> None:
        """The sum over experts, which must be the undivided model's."""
        for n, value in enumerate(state.values):
            total = value + sum(rows.get(n, 0) for rows in results.values())
            assert total % MODULUS == next_value(layer, value), f"layer {layer}: a wrong sum of token {n}"
            state.values[n] = total % MODULUS


@dataclass
class Experts:
    """`MoEStage`: one weighted sum a row."""

    runtime: ShakenRuntime

    async def super_kernel(self, layer: int, rows_RH: list[Rows], num_rows_E: Any) -> list[Rows]:  # noqa: ARG002
        """See `MoEStage`."""
        await self.runtime.pause()
        return [
            {n: sum(weight * expert(x, layer, value) for x, weight, value in row) for n, row in rows.items()}
            for rows in rows_RH
        ]


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


@dataclass
class Work:
    """Batches of one group: what is yet to be answered runs again when the group is lost."""

    batches: list[Batch]
    answered: list[str] = field(default_factory=list)


class Instance:
    """D groups and E devices, and the owner who replaces what is lost (`actors.recovery`, in the same order)."""

    def __init__(self, runtime: ShakenRuntime, parallel: ParallelSpec, broken: Broken, num_batches: int) -> None:
        self.runtime = runtime
        self.broken = broken
        self._parallel = parallel
        self._epoch = 0
        self._absent = {("group", i) for i in range(parallel.dp_groups)}
        self._absent |= {("device", e) for e in range(parallel.moe_devices)}
        self.work = [Work(self._batches(i, num_batches)) for i in range(parallel.dp_groups)]
        self.devices: list[DeviceLife] = []
        self.groups = [self._new_group(i) for i in range(parallel.dp_groups)]
        self.devices = [self._new_device(e) for e in range(parallel.moe_devices)]

    async def run(self) -> None:
        """Until every batch is answered; whoever is lost meanwhile is replaced."""
        while any(work.batches for work in self.work):
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
        comms = []
        for j in range(self._parallel.tp):
            comm = FaultyAttentionComm(self.runtime, (i, j, self._epoch), {}, self.broken)
            comm.tp = self._parallel.tp
            comms.append(comm)
        door = VirtualDoor(self.runtime, PREFILL, i, lambda batch, _tokens, _stamps: self._answered(i, batch))
        for batch in self.work[i].batches:
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
        assert batch in self.work[i].batches, "a batch is answered twice"
        self.work[i].batches.remove(batch)
        self.runtime.ring()

    def _batches(self, i: int, count: int) -> list[Batch]:
        draw = self.runtime.random.randint
        return [
            Batch((Request(request_id=f"{100 * (i + 1) + n}", num_tokens=draw(1, 9), arrival_s=0.0),))
            for n in range(count)
        ]
