"""The engine on the host backend: right answers for every D, T, E, in any order, and no deadlock."""

from __future__ import annotations

import random

import pytest

from asap_ray.spec import Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec
from tests.engine.toys import HIDDEN, Toy, ToyInstance, expected, random_batch

LIMIT = 96


def whole(dp_groups: int, tp: int, moe_devices: int, combine: Combine = Combine.REDUCED, layers: int = 4) -> Instance:
    """A toy instance of the given degrees."""
    return Instance(
        model=ModelSpec(num_layers=layers, hidden=HIDDEN, num_experts=7, top_k=3),
        parallel=ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices),
        prefill=PrefillSpec(
            max_tokens=LIMIT, solo_tokens=LIMIT // 2, inflection_tokens=8, combine=combine, deadline_s=20.0
        ),
    )


@pytest.mark.parametrize("moe_devices", [1, 2, 3])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dp_groups", [1, 2, 3])
@pytest.mark.parametrize("combine", list(Combine))
def test_answers_equal_the_undivided_model(dp_groups: int, tp: int, moe_devices: int, combine: Combine) -> None:
    """Batches of all sizes on every group, two in flight: each sum is the undivided model's."""
    toy = Toy(whole(dp_groups, tp, moe_devices, combine))
    shapes = [[1], [5, 1, 7], [LIMIT], [LIMIT // 2], [3, 3], [LIMIT // 2 + 1], [2]]
    batches = [
        (i, random_batch(f"{i}.{n}", lengths, seed=10 * i + n))
        for n, lengths in enumerate(shapes)
        for i in range(dp_groups)
    ]

    with ToyInstance(toy) as running:
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert answers == pytest.approx(wanted, rel=1e-4)


def test_one_cold_request_needs_no_second_one() -> None:
    """With D=2 a single request on a cold instance finishes although the other group never works."""
    toy = Toy(whole(2, 1, 2))
    batch = random_batch("only", [3], seed=1)

    with ToyInstance(toy) as running:
        answers = running.ask([(1, batch)])

    assert answers == pytest.approx(expected(toy, batch), rel=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_stage_times_never_deadlock(seed: int) -> None:
    """Any stage times let every batch finish: combine_send never waits (ADR 0001)."""
    generator = random.Random(seed)
    degrees = (generator.randint(1, 3), generator.choice([1, 1, 2]), generator.randint(1, 4))
    toy = Toy(whole(*degrees, layers=6))
    batches = [
        (i, random_batch(f"{i}.{n}", [generator.choice([1, 4, 30, 60])], seed=n))
        for n in range(6)
        for i in range(degrees[0])
    ]

    with ToyInstance(toy, delay_s=lambda: generator.choice([0.0, 0.0, 0.0005, 0.003])) as running:
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert answers == pytest.approx(wanted, rel=1e-4)


def test_a_short_batch_overtakes_a_long_queue_on_another_group() -> None:
    """Groups run at their own pace: one batch on group 1 does not wait for twenty on group 0."""
    toy = Toy(whole(2, 1, 2))
    queue = [(0, random_batch(f"long.{n}", [48], seed=n)) for n in range(20)]
    short = (1, random_batch("short", [2], seed=99))

    with ToyInstance(toy, delay_s=lambda: 0.001) as running:
        running.ask([*queue, short])

    assert running.finished.index("short.0") < len(queue) // 2


def test_a_second_batch_finishes_beside_a_longer_first() -> None:
    """Two slots are two pipelines: the short batch is not held until the long one is done."""
    toy = Toy(whole(1, 1, 2))
    first, second = random_batch("first", [48], seed=1), random_batch("second", [1], seed=2)
    third = random_batch("third", [1], seed=3)

    with ToyInstance(toy) as running:
        running.ask([(0, first), (0, second), (0, third)])

    assert sorted(running.finished) == ["first.0", "second.0", "third.0"]
