"""A synchronous system in virtual time: the loop of `engine/lockstep.py` over exchanges with barriers (5.1).

Every worker is the T dies of one DP group: its attention, and its T of the N expert devices. An exchange is
complete for nobody before everybody has sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from asap_ray.backends.virtual.comm import Nic
from asap_ray.backends.virtual.door import Deliver
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.backends.virtual.stages import Barrier, Rows, VirtualAttention, VirtualMoE
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.model import CostModel
from asap_ray.cost.skew import Load, balanced
from asap_ray.engine import lockstep
from asap_ray.errors import ConfigError
from asap_ray.laps import Laps, Recorders, State, no_recorders
from asap_ray.protocol import Routed, WorkItem
from asap_ray.spec import NUM_SLOTS
from asap_ray.tracks import Role, Source


class StepPolicy(Protocol):
    """What a synchronous system needs of its scheduler."""

    def submit(self, request: Request, now: float) -> None:
        """Queue a request."""

    def step(self, now: float) -> list[tuple[Batch, ...]] | None:
        """The micro-batches of each group; None if no step may start now. The step before has finished."""

    def wake_at(self, now: float) -> float | None:
        """When `step` has one if nothing else happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepSpec:
    """What runs, on what: all devices of `cost` hold experts, `cost.tp` of them are one DP group."""

    cost: CostModel
    load: Load = balanced
    recorders: Recorders = no_recorders

    def __post_init__(self) -> None:
        if self.cost.moe_devices % self.cost.tp:
            raise ConfigError(f"{self.cost.moe_devices} devices are no whole number of groups of tp={self.cost.tp}")

    @property
    def num_groups(self) -> int:
        """DP groups, each on devices of its own: no device is for attention or experts alone."""
        return self.cost.moe_devices // self.cost.tp


class LockstepInstance:
    """A worker a DP group, and the steps they take together."""

    def __init__(self, runtime: VirtualRuntime, spec: LockstepSpec, policy: StepPolicy, deliver: Deliver) -> None:
        self._runtime = runtime
        groups = range(spec.num_groups)
        self.steps = Steps(runtime, policy, spec.num_groups, spec.cost.hardware.step_overhead_s)
        exchanges = Exchanges(runtime, spec.cost, spec.num_groups)
        self.workers = [
            lockstep.Worker(
                runtime,
                LockstepAttentionComm(exchanges, i),
                LockstepMoEComm(exchanges, i),
                VirtualAttention(runtime, spec.cost, Barrier(runtime, 1, f"group {i}")),
                VirtualMoE(runtime, spec.cost, _slowest(spec, i), launch_s=0.0),
                WorkerDoor(self.steps, i, deliver),
                Laps(runtime.now, State.IDLE, spec.recorders(Source(role=Role.WORKER, index=i))("worker")),
            )
            for i in groups
        ]

    async def serve(self) -> None:
        """Run every worker until the run ends."""
        await self._runtime.gather(*map(lockstep.serve, self.workers))


def _slowest(spec: LockstepSpec, group: int) -> Callable[[int], float]:
    """By layer, the load of the busiest of the group's expert devices."""
    devices = range(group * spec.cost.tp, (group + 1) * spec.cost.tp)
    loads = [max(spec.load(e, layer) for e in devices) for layer in range(spec.cost.shape.num_layers)]
    return loads.__getitem__


class AllToAll:
    """One exchange of one slot, round after round: nobody has anything before everybody has sent.

    A group is never more than one round ahead, because it needs the results of the round before to go on.
    """

    def __init__(self, runtime: VirtualRuntime, num_groups: int, what: str) -> None:
        self.last_s = 0.0  # when the last message of the round is there, of those sent
        self._runtime = runtime
        self._num_sent = 0
        self._rounds = [0] * num_groups  # each group has waited for
        self._all_sent = runtime.signal(what)

    def send(self, time_s: float) -> None:
        """A group's message, there at that time."""
        self.last_s = max(self.last_s, time_s)
        self._num_sent += 1
        if self._num_sent % len(self._rounds) == 0:
            self._runtime.wake(self._all_sent)

    async def receive(self, group: int) -> None:
        """Wait until every message of the group's next round is there."""
        self._rounds[group] += 1
        while self._num_sent < self._rounds[group] * len(self._rounds):
            await self._runtime.park(self._all_sent)
        await until(self._runtime, self.last_s)


async def until(runtime: VirtualRuntime, time_s: float) -> None:
    """Let time pass up to a time that may be over."""
    if time_s > runtime.now():
        await runtime.sleep(time_s - runtime.now())


class Exchanges:
    """What the workers share: both exchanges of every slot, and how many rows each group sent."""

    def __init__(self, runtime: VirtualRuntime, cost: CostModel, num_groups: int) -> None:
        self.runtime = runtime
        self.cost = cost
        self.num_tokens = [[0] * num_groups for _ in range(NUM_SLOTS)]  # of each group's micro-batch
        self.layers = [0] * NUM_SLOTS
        self.dispatch = [AllToAll(runtime, num_groups, f"rows of slot {slot}") for slot in range(NUM_SLOTS)]
        self.combine = [AllToAll(runtime, num_groups, f"results of slot {slot}") for slot in range(NUM_SLOTS)]


class LockstepAttentionComm:
    """`AttentionComm` of one group."""

    def __init__(self, exchanges: Exchanges, group: int) -> None:
        self._exchanges = exchanges
        self._group = group
        self._nic_out, self._nic_in = Nic(), Nic()

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`. Writing takes the calling stream unless a NIC does it, as in `VirtualAttentionComm`."""
        exchanges, num_tokens = self._exchanges, len(routed.hidden_SH)
        exchanges.num_tokens[slot][self._group] = num_tokens
        exchanges.layers[slot] = layer
        link, write_s = exchanges.cost.hardware.link, exchanges.cost.dispatch_s(num_tokens)
        stream_s = link.launch_s if link.is_offloaded else write_s
        await exchanges.runtime.sleep(stream_s)
        sent_s = self._nic_out.through_s(exchanges.runtime.now(), write_s - stream_s)
        exchanges.dispatch[slot].send(sent_s + link.latency_s)

    async def combine_recv(self, slot: int) -> None:
        """See `AttentionComm`; the barrier after a MoE layer."""
        exchanges, results = self._exchanges, self._exchanges.combine[slot]
        link, travel_s = exchanges.cost.hardware.link, exchanges.cost.combine_s(exchanges.num_tokens[slot][self._group])
        await results.receive(self._group)
        there_s = results.last_s + travel_s
        if link.is_offloaded:  # of two micro-batches, the second one's results come after the first one's
            there_s = self._nic_in.through_s(results.last_s + link.launch_s, travel_s - link.launch_s)
        await until(exchanges.runtime, there_s + link.latency_s)


class LockstepMoEComm:
    """`LockstepMoEComm` of the experts of one group's devices."""

    def __init__(self, exchanges: Exchanges, group: int) -> None:
        self._exchanges = exchanges
        self._group = group

    async def dispatch_recv(self, slot: int) -> WorkItem:
        """See `LockstepMoEComm`; the barrier before a MoE layer."""
        await self._exchanges.dispatch[slot].receive(self._group)
        rows = Rows(Batch(()), sum(self._exchanges.num_tokens[slot]))
        layer, now_s = self._exchanges.layers[slot], self._exchanges.runtime.now()
        return WorkItem(self._group, slot, layer, rows.num_tokens, None, rows, None, now_s)

    async def combine_send(self, work: WorkItem, results_RH: Any) -> None:  # noqa: ARG002
        """See `LockstepMoEComm`."""
        self._exchanges.combine[work.slot].send(self._exchanges.runtime.now())


class Steps:
    """The global steps: the policy is asked once every worker has finished, and nothing runs meanwhile."""

    def __init__(self, runtime: VirtualRuntime, policy: StepPolicy, num_groups: int, overhead_s: float) -> None:
        self._runtime = runtime
        self._policy = policy
        self._num_groups = num_groups
        self._overhead_s = overhead_s  # scheduling and inputs of one step, before its first kernel
        self._num_idle = 0
        self._step: list[tuple[Batch, ...]] = []
        self._begins = runtime.signal("the next step")
        self._news = runtime.signal("a request, or the end of a wait for company")

    def submit(self, request: Request) -> None:
        """Queue a request; it may start at once if nothing runs."""
        self._policy.submit(request, self._runtime.now())
        self._runtime.wake(self._news)

    async def step(self, group: int) -> tuple[Batch, ...]:
        """A group's micro-batches of the next step. The last group to come asks for all."""
        self._num_idle += 1
        if self._num_idle < self._num_groups:
            await self._runtime.park(self._begins)
        else:
            self._num_idle = 0
            self._step = await self._next()
            self._runtime.wake(self._begins)
        return self._step[group]

    async def _next(self) -> list[tuple[Batch, ...]]:
        while (step := self._policy.step(self._runtime.now())) is None:
            if (wake_at := self._policy.wake_at(self._runtime.now())) is not None:
                self._runtime.call_at(wake_at, lambda: self._runtime.wake(self._news))
            await self._runtime.park(self._news)
        await self._runtime.sleep(self._overhead_s)
        return step


class WorkerDoor:
    """`StepQueue` of one group."""

    def __init__(self, steps: Steps, group: int, deliver: Deliver) -> None:
        self._steps = steps
        self._group = group
        self._deliver = deliver

    async def step(self) -> tuple[Batch, ...]:
        """See `StepQueue`."""
        return await self._steps.step(self._group)

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """See `StepQueue`."""
        self._deliver(batch, tokens, stamps)
