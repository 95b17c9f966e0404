"""One engine, two worlds: threads over shared memory and tasks in virtual time take the same steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from asap_ray.backends.virtual.instance import VirtualInstance, VirtualSpec
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.cost.hardware import ascend_910c
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import deepseek_v32
from asap_ray.engine import attention, experts
from asap_ray.placement import Placement
from asap_ray.protocol import Routed, WorkItem
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, PrefillSpec
from tests.engine.toys import HIDDEN, Loops, Toy, ToyInstance, random_batch

LIMIT = 64
LENGTHS = [[9], [3, 4, 2], [40], [11], [1], [33], [8, 8]]  # 40 and 33 run alone in their group

Steps = dict[str, list[tuple[int, int, int]]]


class Recorded:
    """Loops that note each (group, layer, slot) a rank sends and a device takes."""

    def __init__(self, whole: Instance, go: Callable[[], object] = lambda: None) -> None:
        self._tp = whole.parallel.tp
        self._go = go
        self._num_ranks = self._num_devices = 0
        self.steps: Steps = {}

    @property
    def loops(self) -> Loops:
        """For `instance.serve`, which starts ranks in the order of (i, j) and devices in that of e."""
        return self._attend, self._serve_experts

    def _attend(self, rank: attention.Rank) -> Coroutine[Any, Any, None]:
        group, tp_rank = divmod(self._num_ranks, self._tp)
        self._num_ranks += 1
        log = self.steps[f"rank {group} {tp_rank}"] = []
        return self._started(attention.serve(replace(rank, comm=_Sends(rank.comm, group, log))))

    def _serve_experts(self, device: experts.Device) -> Coroutine[Any, Any, None]:
        log = self.steps[f"device {self._num_devices}"] = []
        self._num_devices += 1
        return self._started(experts.serve(replace(device, comm=_Takes(device.comm, log))))

    async def _started(self, loop: Coroutine[Any, Any, None]) -> None:
        self._go()
        await loop


class _Sends:
    def __init__(self, comm: Any, group: int, log: list[tuple[int, int, int]]) -> None:
        self.combine_recv = comm.combine_recv
        self._send, self._group, self._log = comm.dispatch_send, group, log

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        self._log.append((self._group, layer, slot))
        await self._send(slot, layer, routed)


class _Takes:
    def __init__(self, comm: Any, log: list[tuple[int, int, int]]) -> None:
        self.combine_send = comm.combine_send
        self._recv, self._log = comm.dispatch_recv, log

    async def dispatch_recv(self) -> WorkItem:
        work: WorkItem = await self._recv()
        self._log.append((work.dp_group, work.layer, work.slot))
        return work


def whole_of(dp_groups: int, tp: int, moe_devices: int) -> Instance:
    """A toy instance."""
    return Instance(
        model=ModelSpec(num_layers=4, hidden=HIDDEN, num_experts=6, top_k=3),
        parallel=ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices),
        prefill=PrefillSpec(max_tokens=LIMIT, solo_tokens=LIMIT // 2, inflection_tokens=8),
    )


def batches_of(whole: Instance) -> list[tuple[int, Batch]]:
    """The same batches for every group."""
    groups = range(whole.parallel.dp_groups)
    return [(i, random_batch(f"{i}.{n}", lengths, n)) for n, lengths in enumerate(LENGTHS) for i in groups]


def host_steps(whole: Instance) -> Steps:
    """Real threads, real buffers; no loop starts before all batches are at their doors."""
    go, batches = threading.Event(), batches_of(whole)
    recorded = Recorded(whole, lambda: go.wait(30))
    with ToyInstance(Toy(whole), loops=recorded.loops) as running:
        for group, batch in batches:
            running.doors[group].put(batch)
        go.set()
        running.wait(batches)
    return recorded.steps


def virtual_steps(whole: Instance) -> Steps:
    """The same in virtual time, every rank and device."""
    parallel, batches = whole.parallel, batches_of(whole)
    shape = replace(deepseek_v32(), num_layers=whole.model.num_layers)
    cost = CostModel(shape=shape, hardware=ascend_910c(), tp=parallel.tp, moe_devices=parallel.moe_devices)
    recorded = Recorded(whole)
    spec = VirtualSpec(cost=cost, parallel=parallel, prefill=whole.prefill, is_pooled=False, loops=recorded.loops)
    runtime = VirtualRuntime()
    answered = runtime.signal("answers")
    answers: list[str] = []

    def deliver(_batch: Batch, tokens: tuple[Token, ...], _stamps: Stamps) -> None:
        answers.extend(token.request_id for token in tokens)
        runtime.wake(answered)

    async def main() -> None:
        instance = VirtualInstance(runtime, spec, deliver)
        for group, batch in batches:
            instance.doors[group].put(batch)
        runtime.spawn(instance.serve())
        while len(answers) < sum(len(batch.requests) for _, batch in batches):
            await runtime.park(answered)

    runtime.run(main())
    return recorded.steps


@pytest.mark.parametrize(("dp_groups", "tp", "moe_devices"), [(1, 1, 1), (1, 2, 1), (1, 1, 3), (2, 2, 2), (3, 1, 2)])
def test_both_worlds_take_the_same_steps(dp_groups: int, tp: int, moe_devices: int) -> None:
    """What each rank sends and each device takes of each slot, as (group, layer, slot), in order, solo batches too.

    Which of two ready slots a device takes first is a matter of timing, in the real world.
    """
    whole = whole_of(dp_groups, tp, moe_devices)

    assert by_slot(host_steps(whole)) == by_slot(virtual_steps(whole))


def test_redundant_experts_change_no_step() -> None:
    """Where a row goes is part of a message: six experts in eleven places, and the steps are those of virtual time."""
    placement = Placement(experts=((5, 0, 3), (1, 0, 2, 4), (4, 3, 5, 0)))
    whole = replace(whole_of(2, 2, 3), placement=placement)

    assert by_slot(host_steps(whole)) == by_slot(virtual_steps(whole))


def by_slot(steps: Steps) -> Steps:
    """A device's steps sorted by region, each region's in order; a rank's as they are."""
    regions = {name: sorted(taken, key=lambda step: step[::2]) for name, taken in steps.items() if "device" in name}
    return steps | regions
