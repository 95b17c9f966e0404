"""What the primitives on the twin do not accept: headers, row indices and choices that do not fit."""

# Shapes: S tokens, K experts per token.

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from asap_ray.spec import NUM_SLOTS
from tests.ascend.devices import CORRUPT, INVALID, Devices, message_bytes, words
from tests.ascend.twin import Twin
from tests.csrc.world import SLOT_ROWS, World

HEADER_WORDS = {"layer": 4, "num_rows": 5, "num_pairs": 6, "reply_offset": 7, "count": 16}


@pytest.mark.parametrize("value", [-1, 1 << 20])
@pytest.mark.parametrize("word", HEADER_WORDS)
def test_a_corrupt_header_is_dropped(twin: Twin, word: str, value: int) -> None:
    """The status has the rank and the group; the word is clear, so the sender is not stuck."""
    world = World(tp=2)
    devices = Devices(twin, world, num_blocks=2)
    for j in range(2):
        devices.send(world.tokens(3), j=j)
    devices.run()
    message_bytes(world.layout, devices.moe[0], (0, 1, 0))[0].view(np.int32)[HEADER_WORDS[word]] = value

    devices.take(0)

    assert devices.run()[0][0].tolist() == [CORRUPT, 1, 0]
    assert words(world.layout, devices.moe[0]).tolist() == [0, 0]


@pytest.mark.parametrize("value", [-1, 3, 1 << 20])
def test_a_corrupt_row_index_is_dropped(twin: Twin, value: int) -> None:
    """No row is read from behind the rank's rows."""
    world = World(moe_devices=1)
    devices = Devices(twin, world, num_blocks=2)
    devices.send(world.tokens(3))
    devices.run()
    message_bytes(world.layout, devices.moe[0], (0, 0, 0))[1].view(np.int32)[1] = value

    devices.take(0)

    assert devices.run()[0][0].tolist() == [CORRUPT, 0, 0]
    assert words(world.layout, devices.moe[0]).tolist() == [0, 0]


@pytest.mark.parametrize("wrong", [[0, 7, 1], [0, -1, 1], [0, 1, 0]])
def test_choices_are_checked(twin: Twin, wrong: list[int]) -> None:
    """An expert out of range or chosen twice by token 1: nothing is sent."""
    world = World()
    devices = Devices(twin, world)
    tokens = dataclasses.replace(world.tokens(2), expert_ids_SK=np.int32([[0, 1, 2], wrong]))

    devices.send(tokens)

    assert [status[0].tolist() for status in devices.run()] == [[INVALID, 1, 0], [INVALID, 0, 0b11]]
    assert not devices.moe[0].any()


def test_more_peers_than_bits_are_refused(twin: Twin) -> None:
    """A word announces 31 peers, the sign stays free: 32 MoE devices are too many."""
    world = World(moe_devices=32, num_experts=32)
    devices = Devices(twin, world)

    devices.send(world.tokens(1))

    assert devices.run()[0][0].tolist() == [INVALID, -2, 31]


def test_more_tokens_than_rows_are_refused(twin: Twin) -> None:
    """One more than both slots hold."""
    world = World()
    devices = Devices(twin, world)

    devices.send(world.tokens(NUM_SLOTS * SLOT_ROWS + 1))

    assert devices.run()[0][0].tolist() == [INVALID, -1, NUM_SLOTS * SLOT_ROWS + 1]
