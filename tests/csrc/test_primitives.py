"""What the four primitives compute (3.2), against a few lines of NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from asap_ray.spec import NUM_SLOTS, Combine, RowType
from tests.csrc.kinds import Kind
from tests.csrc.world import PATIENCE_S, SLOT_ROWS, World

TYPES = [
    (RowType.FLOAT32, RowType.FLOAT32),
    (RowType.BFLOAT16, RowType.FLOAT32),
    (RowType.BFLOAT16, RowType.BFLOAT16),
    (RowType.FLOAT16, RowType.FLOAT32),
    (RowType.FLOAT16, RowType.FLOAT16),
]


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize(("row_type", "compute_type"), TYPES)
@pytest.mark.parametrize("moe_devices", [1, 2, 3, 4, 5])
def test_results_are_the_weighted_sum_over_experts(
    backend: Kind, moe_devices: int, row_type: RowType, compute_type: RowType, combine: Combine
) -> None:
    """Seven experts on 1 to 5 devices, every row type: out = sum over experts of weight * expert(row)."""
    types = {"row_type": row_type, "compute_type": compute_type}
    world = World(kind=backend, moe_devices=moe_devices, combine=combine, **types)
    tokens = world.tokens(SLOT_ROWS)

    world.send(tokens)
    for e in range(moe_devices):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(SLOT_ROWS), tokens.expected)


def test_more_than_64_devices_need_a_second_bitmap_word() -> None:
    """70 devices with an expert each: bits 64 to 69 lie in word 1 (host; Ascend kernels stop at 31)."""
    world = World(moe_devices=70, num_experts=70)
    tokens = world.tokens(SLOT_ROWS)

    world.send(tokens)
    for e in range(70):
        world.serve(e)

    assert world.layout.bitmap_words == 2
    np.testing.assert_array_equal(world.receive(SLOT_ROWS), tokens.expected)


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_of_a_group_get_their_own_results(backend: Kind, tp: int, combine: Combine) -> None:
    """T ranks with different numbers of tokens, one of them none, two groups: nothing is mixed up."""
    world = World(kind=backend, dp_groups=2, tp=tp, combine=combine)
    sent = {(i, j): world.tokens(5 * j, seed=10 * i + j) for i in range(2) for j in range(tp)}

    for (i, j), tokens in sent.items():
        world.send(tokens, i, j)
    for e in [0, 1, 0, 1]:
        world.serve(e)

    for (i, j), tokens in sent.items():
        np.testing.assert_array_equal(world.receive(5 * j, i, j), tokens.expected)


def test_rows_are_grouped_by_local_expert(world: World) -> None:
    """The rows of expert x are consecutive and num_rows_E counts them."""
    tokens = world.tokens(SLOT_ROWS)

    world.send(tokens, layer=3)
    item = world.devices[1].async_dispatch_recv(PATIENCE_S)

    chosen = [np.any(tokens.expert_ids_SK == x, axis=1) for x in world.instance.experts_of(1)]
    assert item.num_rows_E.tolist() == [int(rows.sum()) for rows in chosen]
    np.testing.assert_array_equal(item.rows, np.concatenate([tokens.hidden_SH[rows] for rows in chosen]))
    assert (item.dp_group, item.slot, item.layer, item.sequence) == (0, 0, 3, 1)


def test_a_message_without_rows_is_an_item_without_rows(world: World) -> None:
    """Zero tokens reach every device as an empty item, and nobody is waited for."""
    world.send(world.tokens(0))

    assert world.receive(0).shape == (0, world.layout.hidden)
    assert [world.serve(e).rows.shape for e in (0, 1)] == [(0, 20), (0, 20)]


def test_only_devices_with_rows_are_waited_for(world: World) -> None:
    """All tokens go to experts of device 0; device 1 sees an empty item and owes nothing."""
    tokens = dataclasses.replace(world.tokens(4), expert_ids_SK=np.tile(np.int32([2, 0, 1]), (4, 1)))

    world.send(tokens)
    world.serve(0)

    np.testing.assert_array_equal(world.receive(4), tokens.expected)
    assert world.serve(1).num_rows == 0


@pytest.mark.parametrize("combine", Combine)
def test_a_solo_batch_spans_both_slots(backend: Kind, combine: Combine) -> None:
    """Up to twice slot_rows fit in slot 0 (3.3.2)."""
    world = World(kind=backend, combine=combine)
    tokens = world.tokens(NUM_SLOTS * SLOT_ROWS)

    world.send(tokens)
    for e in (0, 1):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(NUM_SLOTS * SLOT_ROWS), tokens.expected)


def test_slots_come_back_in_any_order(world: World) -> None:
    """Two batches in flight at different layers; the second is received first."""
    sent = [world.tokens(5, seed=1), world.tokens(9, seed=2)]

    world.send(sent[0], slot=0, layer=0)
    world.send(sent[1], slot=1, layer=3)
    assert [world.serve(e).layer for e in (0, 0, 1, 1)] == [0, 3, 0, 3]

    np.testing.assert_array_equal(world.receive(9, slot=1), sent[1].expected)
    np.testing.assert_array_equal(world.receive(5, slot=0), sent[0].expected)


def test_round_robin_serves_every_group() -> None:
    """With three groups always ready, the lowest does not starve the others; lowest_first does (host)."""
    world = World(dp_groups=3, moe_devices=1)

    def order(pick: Any) -> list[int]:
        served: list[int] = []
        for i in range(3):
            world.send(world.tokens(0), i)
        for _ in range(3):
            item = world.devices[0].async_dispatch_recv(PATIENCE_S, pick)
            served.append(item.dp_group)
            world.receive(0, item.dp_group)
            world.send(world.tokens(0), item.dp_group)
        for _ in range(3):
            world.receive(0, world.devices[0].async_dispatch_recv(PATIENCE_S).dp_group)
        return served

    assert order("round_robin") == [0, 1, 2]
    assert order("lowest_first") == [0, 0, 0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("row_type", [RowType.BFLOAT16, RowType.FLOAT16])
def test_rows_are_rounded_to_nearest_even(row_type: RowType, seed: int) -> None:
    """Random float32 bit patterns, subnormal and infinite ones included, become what torch makes of them."""
    world = World(moe_devices=1, row_type=row_type, compute_type=row_type)
    shape = (NUM_SLOTS * SLOT_ROWS, world.layout.hidden)
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)
    # Half of them near the range of float16, where random exponents rarely fall.
    bits[::2] = bits[::2] & 0x8FFFFFFF | 0x30000000
    hidden_SH = np.where(np.isnan(bits.view(np.float32)), np.float32(np.inf), bits.view(np.float32))
    expert_ids_SK = np.tile(np.arange(3, dtype=np.int32), (len(hidden_SH), 1))
    weights_SK = np.ones(expert_ids_SK.shape, dtype=np.float32)

    world.ranks[0][0].async_dispatch_send(0, 0, hidden_SH, expert_ids_SK, weights_SK, PATIENCE_S)
    rows_RH = world.devices[0].async_dispatch_recv(PATIENCE_S).rows

    expected = torch.from_numpy(hidden_SH).to(getattr(torch, row_type)).view(torch.uint16).numpy()
    np.testing.assert_array_equal(rows_RH[: len(hidden_SH)], expected)
