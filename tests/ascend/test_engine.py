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
from asap_ray.evaluation.places import place
from asap_ray.models.model import load_model
from asap_ray.spec import Combine, ExpertType, Instance, ModelSpec, ParallelSpec, PrefillSpec
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
    """One group of T ranks and E devices of a checkpoint, each in a thread, on the ports of one kind; some are dead."""

    def __init__(self, config: ServeConfig, ports: Callable[[], Ports], dead: tuple[int, ...] = ()) -> None:
        self._config, self._ports = config, ports
        self._model = model = load_model(config.model)
        members = collectives(config.parallel.tp)
        self.ranks = [HostAttention(config, model, 0, each, EPOCH, ports()) for each in members]
        self.devices = [HostMoE(config, model, e, ports()) for e in range(config.parallel.moe_devices)]
        self._tokens: list[Token] = []
        self._answered = threading.Event()
        self._door = Door(self.ranks[0].runtime, config.prefill, self._deliver)
        self._rank_places = rank_places = [rank.registration({}) for rank in self.ranks]
        device_places = [device.registration({}) for device in self.devices]
        for rank in self.ranks:
            rank.connect(device_places)
        for device in self.devices:
            device.connect(rank_places)
        doors: list[Any] = [FollowedDoor(c, self._door if c.rank == 0 else None) for c in members]
        loops = [lambda r=r, d=d: r.serve(d) for r, d in zip(self.ranks, doors, strict=True)]
        loops += [device.serve for e, device in enumerate(self.devices) if e not in dead]
        self._failures: list[BaseException] = []
        self._dead: list[HostMoE] = []  # what was killed closes nothing: its peers' mappings stay
        self._threads: list[threading.Thread] = []
        for loop in loops:
            self._start(loop)

    def put(self, batch: Batch) -> None:
        """At the group's door."""
        self._door.put(batch)

    def replace_device(self, e: int) -> None:
        """With another, of which every rank hears."""
        successor = HostMoE(self._config, self._model, e, self._ports())
        successor.connect(self._rank_places)
        for rank in self.ranks:
            rank.replace_device(successor.registration({}))
        self._dead.append(self.devices[e])
        self.devices[e] = successor
        self._start(successor.serve)

    def first_tokens(self) -> list[Token]:
        """Of every request of the batch that was put."""
        answered = self._answered.wait(60)
        for each in (*self.ranks, *self.devices):
            each.runtime.close()
        for thread in self._threads:
            thread.join()
        assert (answered, self._failures) == (True, [])
        return self._tokens

    def _start(self, loop: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=self._run, args=(loop,)))
        self._threads[-1].start()

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as failure:
            self._failures.append(failure)
            self._answered.set()

    def _deliver(self, _batch: Batch, tokens: tuple[Token, ...], _stamps: Any) -> None:
        self._tokens = list(tokens)
        self._answered.set()


def ascend() -> Ports:
    """A die over the fake runtime."""
    return AscendPorts(_native.ascend.Die(str(fake_runtime()), str(kernels_folder()), 0))


def config_of(model: Path, **keys: Any) -> ServeConfig:
    """T=2, three devices."""
    return ServeConfig(
        model=str(model),
        parallel=ParallelSpec(dp_groups=1, tp=2, moe_devices=3),
        prefill=PrefillSpec(max_tokens=32, solo_tokens=16, inflection_tokens=4, deadline_s=60.0),
        **keys,
    )


def answers_of(running: Running) -> tuple[list[int], list[float | None]]:
    """The first tokens and their probabilities."""
    tokens = running.first_tokens()
    return [token.token_id for token in tokens], [token.logprob for token in tokens]


@pytest.mark.parametrize("expert_type", ExpertType)
def test_a_checkpoint_answers_as_on_the_host(tiny_model: Path, expert_type: ExpertType) -> None:
    """Experts in the super kernel, in float and in W8A8: the same tokens, and their probabilities."""
    config = config_of(tiny_model, expert_type=expert_type)
    answers = []
    for ports in (ascend, HostPorts):
        running = Running(config, ports)
        running.put(batch())
        answers.append(answers_of(running))

    (ours, our_logprobs), (theirs, their_logprobs) = answers
    assert ours == theirs
    assert our_logprobs == pytest.approx(their_logprobs, abs=1e-4)


@pytest.mark.parametrize("ports", [ascend, HostPorts])
def test_redundant_experts_change_no_token(tiny_model: Path, ports: Callable[[], Ports]) -> None:
    """Experts out of order and in several places: the tokens of a plain instance, and their probabilities."""
    num_experts = load_model(tiny_model).spec.num_experts
    placed = place([float(1 + x % 3) for x in range(num_experts)], 3, redundant=4)
    answers = []
    for placement in (None, placed):
        running = Running(config_of(tiny_model, placement=placement), ports)
        running.put(batch())
        answers.append(answers_of(running))

    (plain, plain_logprobs), (redundant, redundant_logprobs) = answers
    assert redundant == plain
    assert redundant_logprobs == pytest.approx(plain_logprobs, abs=1e-4)


def test_a_dead_device_is_replaced_under_way(tiny_model: Path) -> None:
    """Its successor computes what it never did, in W8A8: the answers are those of an instance that lost nobody."""
    config = config_of(tiny_model, expert_type=ExpertType.INT8)
    whole, maimed = Running(config, ascend), Running(config, ascend, dead=(1,))
    for running in (whole, maimed):
        running.put(batch())

    maimed.replace_device(1)

    assert answers_of(maimed) == answers_of(whole)
