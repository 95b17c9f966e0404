"""The engine on the host backend: right answers for every D, T, E, in any order, and no deadlock."""

from __future__ import annotations

import random

import pytest

from asap_ray.engine import attention, experts
from asap_ray.placement import Placement
from asap_ray.spec import Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType
from tests.engine.toys import HIDDEN, Loops, Toy, ToyExperts, ToyInstance, expected, random_batch

LIMIT = 96


def whole(
    dp_groups: int,
    tp: int,
    moe_devices: int,
    combine: Combine = Combine.REDUCED,
    row_type: RowType = RowType.FLOAT32,
    placement: Placement | None = None,
) -> Instance:
    """A toy instance of the given degrees."""
    return Instance(
        model=ModelSpec(num_layers=4, hidden=HIDDEN, num_experts=7, top_k=3),
        parallel=ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices),
        prefill=PrefillSpec(
            max_tokens=LIMIT,
            solo_tokens=LIMIT // 2,
            inflection_tokens=8,
            combine=combine,
            row_type=row_type,
            deadline_s=20.0,
        ),
        placement=placement,
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


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("combine", list(Combine))
def test_redundant_experts_change_no_answer(tp: int, combine: Combine) -> None:
    """Seven experts in eleven places of three devices, out of order: sums are the undivided model's."""
    placement = Placement(experts=((6, 0, 3), (1, 0, 2, 4), (5, 3, 6, 0)))
    toy = Toy(whole(2, tp, 3, combine, placement=placement))
    batches = [(i, random_batch(f"{i}.{n}", [size], seed=n)) for n, size in enumerate([20, LIMIT, 7]) for i in range(2)]

    with ToyInstance(toy) as running:
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert answers == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("row_type", [RowType.BFLOAT16, RowType.FLOAT16])
def test_rows_may_travel_narrower_than_they_are_computed(row_type: RowType) -> None:
    """Float32 mathematics over 16-bit rows is right to the precision of the rows."""
    toy = Toy(whole(2, 1, 2, row_type=row_type))
    batch = random_batch("narrow", [40], seed=1)

    with ToyInstance(toy) as running:
        answers = running.ask([(0, batch)])

    assert answers == pytest.approx(expected(toy, batch), rel=1e-2)


@pytest.mark.parametrize(
    "loops",
    [(attention.serve_pairs, experts.serve), (attention.serve, experts.serve_sequential)],
    ids=["pairs", "one stream"],
)
def test_ablations_give_the_same_answers(loops: Loops) -> None:
    """Co-started pairs (3.3.2) and a MoE device with one stream (5.5.2) change the order of work, not its result."""
    toy = Toy(whole(2, 2, 2))
    sizes = [20, 5, LIMIT, 1, 7]
    batches = [(i, random_batch(f"{i}.{n}", [size], seed=n)) for n, size in enumerate(sizes) for i in range(2)]

    with ToyInstance(toy, loops=loops) as running:
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
    toy = Toy(whole(*degrees))
    batches = [
        (i, random_batch(f"{i}.{n}", [generator.choice([1, 4, 30, 60])], seed=n))
        for n in range(6)
        for i in range(degrees[0])
    ]

    with ToyInstance(toy, delay_s=lambda: generator.choice([0.0, 0.0, 0.0005, 0.003])) as running:
        answers = running.ask(batches)

    wanted = {name: total for _, batch in batches for name, total in expected(toy, batch).items()}
    assert answers == pytest.approx(wanted, rel=1e-4)


def test_a_device_that_is_twenty_times_slower_costs_time_only() -> None:
    """Answers are right, no wait reaches its deadline of 20 s, and its own totals tell which of the three it is."""
    toy = Toy(whole(2, 1, 3))
    batches = [(i, random_batch(f"{i}.{n}", [8], seed=n)) for n in range(5) for i in range(2)]

    with ToyInstance(toy, delay_s=lambda: 0.001) as running:
        slow = running.devices[1].stage
        assert isinstance(slow, ToyExperts)
        slow.delay_s = lambda: 0.02
        answers = running.ask(batches)
        layer_s = [device.duty.compute_s / device.duty.num_items for device in running.devices]

    assert answers == pytest.approx(
        {name: total for _, batch in batches for name, total in expected(toy, batch).items()}, rel=1e-4
    )
    assert layer_s[1] > 0.02
    assert max(range(3), key=layer_s.__getitem__) == 1


def test_a_short_batch_overtakes_a_long_queue_on_another_group() -> None:
    """Groups run at their own pace: one batch on group 1 does not wait for twenty on group 0."""
    toy = Toy(whole(2, 1, 2))
    queue = [(0, random_batch(f"long.{n}", [48], seed=n)) for n in range(20)]
    short = (1, random_batch("short", [2], seed=99))

    with ToyInstance(toy, delay_s=lambda: 0.001) as running:
        running.ask([*queue, short])

    assert running.finished.index("short.0") < len(queue) // 2


def test_a_short_batch_passes_a_longer_one_in_the_other_slot() -> None:
    """Two slots are two pipelines, refilled alone: short batches stream through beside a long pass.

    The long batch decodes (its answer comes in many passes), so it holds its slot while three short ones,
    one after the other, use the second.
    """
    toy = Toy(whole(1, 1, 2))
    long = random_batch("long", [48], seed=1)
    shorts = [random_batch(f"short{n}", [1], seed=n) for n in range(3)]

    with ToyInstance(toy, passes={"long.0": 20}) as running:
        running.ask([(0, long), *[(0, short) for short in shorts]])

    assert running.finished[-1] == "long.0"


@pytest.mark.parametrize("tp", [1, 2])
def test_a_batch_that_nobody_waits_for_gives_up_its_slot(tp: int) -> None:
    """It would decode for ever; a solo batch, which needs the whole group, runs behind it."""
    toy = Toy(whole(1, tp, 2))
    endless, solo = random_batch("endless", [4], seed=1), random_batch("solo", [LIMIT], seed=2)

    with ToyInstance(toy, passes={"endless.0": 1_000_000_000}) as running:
        for batch in (endless, solo):
            running.doors[0].put(batch)
        running.doors[0].abort(["endless.0", "of another group"])
        answers = running.wait([(0, endless), (0, solo)])

    assert running.finished == ["endless.0", "solo.0"]
    assert answers == pytest.approx(expected(toy, endless) | expected(toy, solo), rel=1e-4)
