"""A MoE device dies under load at every point of receive, compute and send; its successor serves on."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from asap_ray.engine import attention, experts
from asap_ray.protocol import MoEComm, MoEStage, WorkItem
from tests.engine.test_host import LIMIT, whole
from tests.engine.toys import Toy, ToyExperts, ToyInstance, expected, random_batch

POINTS = ("before receive", "after receive", "compute", "before send", "after send")


class Died(Exception):
    """The end of a device, as far as anybody else can see."""


@dataclasses.dataclass
class Death:
    """Kills at the n-th time a device comes to a point; later devices live."""

    point: str
    countdown: int

    def at(self, point: str) -> None:
        """The device is here."""
        if point == self.point:
            self.countdown -= 1
            if self.countdown == 0:
                raise Died


@dataclasses.dataclass(frozen=True)
class MortalComm:
    """`MoEComm` that may die on either side of its primitives."""

    comm: MoEComm
    death: Death

    async def dispatch_recv(self) -> WorkItem:
        """See `MoEComm`."""
        self.death.at("before receive")
        work = await self.comm.dispatch_recv()
        self.death.at("after receive")
        return work

    async def combine_send(self, work: WorkItem, results_RH: Any) -> None:
        """See `MoEComm`."""
        self.death.at("before send")
        await self.comm.combine_send(work, results_RH)
        self.death.at("after send")


@dataclasses.dataclass(frozen=True)
class MortalStage:
    """`MoEStage` that may die computing."""

    stage: MoEStage
    death: Death

    async def super_kernel(self, layer: int, rows_RH: Any, num_rows_E: Any) -> Any:
        """See `MoEStage`."""
        self.death.at("compute")
        return await self.stage.super_kernel(layer, rows_RH, num_rows_E)


class Mortal:
    """The loop of MoE devices of which number 0 dies; its owner starts another."""

    def __init__(self, toy: Toy, deaths: list[Death]) -> None:
        self.toy = toy
        self.deaths = deaths
        self.running: ToyInstance | None = None
        self.num_deaths = 0

    async def serve(self, device: experts.Device) -> None:
        """`experts.serve`, as often as device 0 dies and once more."""
        assert isinstance(device.stage, ToyExperts)
        for death in self.deaths if device.stage.moe_device == 0 else ():
            comm, stage = MortalComm(device.comm, death), MortalStage(device.stage, death)
            mortal = dataclasses.replace(device, comm=comm, stage=stage)
            try:
                await experts.serve(mortal)
            except Died:
                assert self.running
                self.num_deaths += 1
                device = self.running.replace_device(self.toy, 0)
        await experts.serve(device)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("dp_groups", "tp", "moe_devices"), [(2, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_no_answer_is_lost_or_wrong(point: str, dp_groups: int, tp: int, moe_devices: int) -> None:
    """Batches of all sizes, two in flight a group; device 0 dies twice at one point, anywhere in the load."""
    generator = random.Random(f"{point} {dp_groups} {tp} {moe_devices}")
    toy = Toy(whole(dp_groups, tp, moe_devices))
    mortal = Mortal(toy, [Death(point, generator.randint(1, 12)), Death(point, generator.randint(1, 8))])
    sizes = [20, 5, LIMIT, 1, LIMIT // 2, 7, 3]
    batches = [
        (i, random_batch(f"{i}.{n}", [size], seed=10 * i + n)) for n, size in enumerate(sizes) for i in range(dp_groups)
    ]

    with ToyInstance(toy, loops=(attention.serve, mortal.serve)) as running:
        mortal.running = running
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert mortal.num_deaths == 2
    assert answers == pytest.approx(wanted, rel=1e-4)
