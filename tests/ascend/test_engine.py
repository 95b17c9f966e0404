"""The unchanged engine on Ascend kernels, which run on the twin: the same answers as on the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asap_ray import _native
from asap_ray.backends.ascend.ports import AscendPorts
from asap_ray.backends.door import Door, FollowedDoor
from asap_ray.backends.host import HostAttention, HostMoE
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.ports import Ports
from asap_ray.batch import Batch, Token
from asap_ray.config import ServeConfig
from asap_ray.models.model import load_model
from asap_ray.spec import Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec
from tests.ascend.prompts import batch
from tests.ascend.twin import fake_runtime, kernels_folder
from tests.csrc.kinds import ascend_kind
from tests.engine.toys import HIDDEN, Toy, ToyInstance, collectives, expected, random_batch

ROOM = 24
EPOCH = 7  # of the group, the same on its ranks


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize(("dp_groups", "tp", "moe_devices"), [(1, 2, 3), (2, 1, 1)])
def test_answers_equal_the_undivided_model(dp_groups: int, tp: int, moe_devices: int, combine: Combine) -> None:
    """A toy model, two batches in flight in every group and a solo one: each sum is the undivided model's."""
    prefill = PrefillSpec(max_tokens=ROOM, solo_tokens=ROOM // 2, inflection_tokens=4, combine=combine, deadline_s=60.0)
    parallel = ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices)
    model = ModelSpec(num_layers=2, hidden=HIDDEN, num_experts=7, top_k=3)
    toy = Toy(Instance(model=model, parallel=parallel, prefill=prefill))
    shapes = [[1], [5, 1], [ROOM], [3]]
    batches = [(i, random_batch(f"{i}.{n}", s, seed=n)) for n, s in enumerate(shapes) for i in range(dp_groups)]

    with ToyInstance(toy, kind=ascend_kind()) as running:
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert answers == pytest.approx(wanted, rel=1e-4)


class Running:
    """One group of T ranks and E devices of a checkpoint, each in a thread, on the ports of one kind."""

    def __init__(self, config: ServeConfig, ports: Callable[[], Ports]) -> None:
        model = load_model(config.model)
        members = collectives(config.parallel.tp)
        self.ranks = [HostAttention(config, model, 0, each, EPOCH, ports()) for each in members]
        self.devices = [HostMoE(config, model, e, ports()) for e in range(config.parallel.moe_devices)]
        self._tokens: list[Token] = []
        self._answered = threading.Event()
        self._door = Door(self.ranks[0].runtime, config.prefill, self._deliver)
        rank_places = [rank.registration({}) for rank in self.ranks]
        device_places = [device.registration({}) for device in self.devices]
        for rank in self.ranks:
            rank.connect(device_places)
        for device in self.devices:
            device.connect(rank_places)
        doors: list[Any] = [FollowedDoor(c, self._door if c.rank == 0 else None) for c in members]
        loops = [lambda r=r, d=d: r.serve(d) for r, d in zip(self.ranks, doors, strict=True)]
        loops += [device.serve for device in self.devices]
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(loop,)) for loop in loops]
        for thread in self._threads:
            thread.start()

    def first_tokens(self, batch: Batch) -> list[Token]:
        """Of every request."""
        self._door.put(batch)
        answered = self._answered.wait(60)
        for each in (*self.ranks, *self.devices):
            each.runtime.close()
        for thread in self._threads:
            thread.join()
        assert (answered, self._failures) == (True, [])
        return self._tokens

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as failure:
            self._failures.append(failure)
            self._answered.set()

    def _deliver(self, _batch: Batch, tokens: tuple[Token, ...], _stamps: Any) -> None:
        self._tokens = list(tokens)
        self._answered.set()


def test_a_checkpoint_answers_as_on_the_host(tiny_model: Path) -> None:
    """T=2, three devices, experts in the super kernel: the same tokens, and their probabilities."""
    config = ServeConfig(
        model=str(tiny_model),
        parallel=ParallelSpec(dp_groups=1, tp=2, moe_devices=3),
        prefill=PrefillSpec(max_tokens=32, solo_tokens=16, inflection_tokens=4, deadline_s=60.0),
    )

    def ascend() -> Ports:
        return AscendPorts(_native.ascend.Die(str(fake_runtime()), str(kernels_folder()), 0))

    ours, theirs = (Running(config, ports).first_tokens(batch()) for ports in (ascend, HostPorts))

    assert [token.token_id for token in ours] == [token.token_id for token in theirs]
    assert [t.logprob for t in ours] == pytest.approx([t.logprob for t in theirs], abs=1e-4)
