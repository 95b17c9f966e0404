"""Experts in several places: which of them a row goes to, and that its sum is the same (ADR 0010)."""

# Shapes: S tokens, K experts per token, E MoE devices, P places.

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from asap_ray import _native
from asap_ray.layout import layout_of
from asap_ray.placement import Placement, split
from asap_ray.spec import Combine, Instance, ModelSpec, ParallelSpec, paper
from tests.csrc.kinds import Kind
from tests.csrc.world import SLOT_ROWS, World


def in_turn(num_experts: int, num_places: int, moe_devices: int) -> Placement:
    """Experts 0, 1, 2, ... and again from 0."""
    devices = split(num_places, moe_devices)
    return Placement(experts=tuple(tuple(place % num_experts for place in places) for places in devices))


def native_layout(instance: Instance) -> _native.Layout:
    """As native code takes it."""
    return _native.Layout(**dataclasses.asdict(layout_of(instance)))


def reference_pairs(instance: Instance, ids_SK: NDArray[np.int32]) -> list[int]:
    """Pairs of each place: every place of an expert is tried, and the best taken."""
    placed = instance.placed
    device_of = [e for e, experts in enumerate(placed.experts) for _ in experts]
    num_pairs_P, num_pairs_E = [0] * placed.num_places, [0] * len(placed.experts)
    for ids in ids_SK.tolist():
        places = [[p for p, x in enumerate(placed.expert_of_place) if x == chosen] for chosen in ids]
        goes_to: set[int] = set()
        for mine in sorted(places, key=lambda mine: len(mine) > 1):
            costs = [(device_of[p] not in goes_to, num_pairs_E[device_of[p]], p) for p in mine]
            place = min(costs)[-1]
            goes_to.add(device_of[place])
            num_pairs_P[place] += 1
            num_pairs_E[device_of[place]] += 1
    return num_pairs_P


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize(("moe_devices", "num_places"), [(2, 8), (3, 9), (3, 13), (5, 35)])
def test_results_are_the_same_sum(backend: Kind, moe_devices: int, num_places: int, combine: Combine) -> None:
    """Seven experts, from one in two places to all on every device: weighted sums over experts, once each."""
    placement = in_turn(7, num_places, moe_devices)
    world = World(kind=backend, moe_devices=moe_devices, placement=placement, combine=combine)
    tokens = world.tokens(SLOT_ROWS)

    world.send(tokens)
    for e in range(moe_devices):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(SLOT_ROWS), tokens.expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_place_is_taken(backend: Kind, seed: int) -> None:
    """On a device the token goes to anyway, else on the one with the fewest pairs: as trying all of them says."""
    moe_devices = 2 + seed % 4
    placement = in_turn(7, 7 + seed % (7 * (moe_devices - 1) + 1), moe_devices)
    world = World(kind=backend, moe_devices=moe_devices, placement=placement)
    tokens = world.tokens(SLOT_ROWS, seed)

    world.send(tokens)

    counts = [world.header(e)[16:][: len(experts)].tolist() for e, experts in enumerate(placement.experts)]
    assert [pairs for device in counts for pairs in device] == reference_pairs(world.instance, tokens.expert_ids_SK)


def test_a_device_the_token_goes_to_anyway_saves_a_row() -> None:
    """Expert 0 is on both devices: beside expert 1 it is asked of device 0, beside expert 2 of device 1."""
    model = ModelSpec(num_layers=1, hidden=1, num_experts=3, top_k=2)
    parallel = ParallelSpec(dp_groups=1, tp=1, moe_devices=2)
    placement = Placement(experts=((0, 1), (0, 2)))
    instance = Instance(model=model, parallel=parallel, prefill=paper().prefill, placement=placement)

    ids_SK = np.int32([[0, 1], [0, 1], [2, 0], [0, 2]])

    assert routed(instance, ids_SK) == ([2, 2], [2, 2, 2, 2])


def test_a_hot_expert_is_divided() -> None:
    """Every token wants expert 0 alone, which is on all three devices: 4 of 12 each."""
    model = ModelSpec(num_layers=1, hidden=1, num_experts=4, top_k=1)
    parallel = ParallelSpec(dp_groups=1, tp=1, moe_devices=3)
    placement = Placement(experts=((0, 1), (0, 2), (0, 3)))
    instance = Instance(model=model, parallel=parallel, prefill=paper().prefill, placement=placement)

    assert routed(instance, np.zeros((12, 1), np.int32)) == ([4, 4, 4], [4, 0, 4, 0, 4, 0])


def routed(instance: Instance, ids_SK: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Rows of each device and pairs of each place."""
    return _native.route(native_layout(instance), instance.placed.expert_of_place, ids_SK)


@pytest.mark.parametrize(
    ("expert_of_place", "message"),
    [
        ([0, 1, 2], "expert_of_place: 3 for num_places=4"),
        ([0, 1, 0, 3], "place 3: expert 3 is not in 0..2"),
        ([0, 1, -1, 2], "place 2: expert -1 is not in 0..2"),
        ([0, 1, 2, 2], "MoE device 1 has expert 2 twice"),
        ([0, 1, 0, 1], "expert 2 has no place"),
    ],
)
def test_a_placement_that_is_none_is_refused(expert_of_place: Sequence[int], message: str) -> None:
    """Before any row is planned: every place has an expert, no device one twice, every expert a place."""
    model = ModelSpec(num_layers=1, hidden=1, num_experts=3, top_k=1)
    parallel = ParallelSpec(dp_groups=1, tp=1, moe_devices=2)
    placement = Placement(experts=((0, 1), (0, 2)))
    instance = Instance(model=model, parallel=parallel, prefill=paper().prefill, placement=placement)

    with pytest.raises(ValueError, match=message):
        _native.route(native_layout(instance), expert_of_place, np.zeros((1, 1), np.int32))
