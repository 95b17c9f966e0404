"""Bounded waits, aborts and epochs of the primitives on the twin: what their status words say."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ascend.devices import CLOSED, IDLE, TIMEOUT, Devices, words
from tests.ascend.twin import Twin
from tests.csrc.world import World


def test_an_idle_device_says_so(twin: Twin) -> None:
    """Nothing has arrived: the wait is bounded, and it is nobody's fault."""
    devices = Devices(twin, World())
    devices.timeout = 500

    devices.take(0)

    assert devices.run()[0][0].tolist() == [IDLE, 0, 0]


def test_a_timeout_names_the_missing_ranks(twin: Twin) -> None:
    """Rank 1 of 3 has sent; the status has place (group 0, slot 1) and the mask of ranks 0 and 2."""
    world = World(tp=3)
    devices = Devices(twin, world)
    devices.send(world.tokens(2), j=1, slot=1)
    devices.run()
    devices.timeout = 500

    devices.take(0)

    assert devices.run()[0][0].tolist() == [TIMEOUT, 1, 0b101]


def test_a_sender_waits_for_credit_and_names_the_device(twin: Twin) -> None:
    """A second message into a slot that no device has read: both devices are named, nothing is overwritten."""
    world = World()
    devices = Devices(twin, world)
    devices.send(world.tokens(2, seed=1))
    devices.run()
    before = devices.moe[0].copy()
    devices.timeout = 500

    devices.send(world.tokens(4, seed=2), sequence=2)

    assert devices.run()[1][0].tolist() == [TIMEOUT, 0, 0b11]
    np.testing.assert_array_equal(devices.moe[0], before)


def test_combine_recv_may_be_called_again_after_a_timeout(twin: Twin) -> None:
    """Device 0 has replied, device 1 has not: it is named; once it has, the sums are right."""
    world = World()
    devices = Devices(twin, world)
    tokens = world.tokens(6)
    devices.send(tokens)
    devices.serve(0)
    devices.run()
    patience, devices.timeout = devices.timeout, 500
    devices.receive(6)
    assert devices.run()[0][0].tolist() == [TIMEOUT, 0, 0b10]
    devices.timeout = patience

    devices.serve(1)
    out_SH = devices.receive(6)
    devices.run()

    np.testing.assert_array_equal(out_SH, tokens.expected)


@pytest.mark.parametrize("call", ["send", "take", "receive"])
def test_the_abort_word_ends_every_wait(twin: Twin, call: str) -> None:
    """Send without credit, receive without a message, receive without replies."""
    world = World()
    devices = Devices(twin, world)
    devices.send(world.tokens(2))
    devices.run()
    devices.abort[0] = 1

    if call == "send":
        devices.send(world.tokens(2), sequence=2)
    elif call == "receive":
        devices.receive(2)
    else:
        devices.moe[0][:] = 0
        devices.take(0)

    assert devices.run()[-1][0, 0] == CLOSED


def test_a_dead_epoch_is_dropped(twin: Twin) -> None:
    """The group has started anew: its old bits are cleared, its old message is never an item."""
    world = World(tp=2)
    devices = Devices(twin, world)
    for j in range(2):
        devices.send(world.tokens(3), j=j)
    devices.run()
    devices.epochs[0][0] += 1
    devices.timeout = 500

    devices.take(0)

    assert devices.run()[0][0, 0] == IDLE
    assert words(world.layout, devices.moe[0]).tolist() == [0, 0]


def test_a_reply_for_a_dead_epoch_is_not_written(twin: Twin) -> None:
    """The group has started anew while its item was computed."""
    world = World()
    devices = Devices(twin, world)
    devices.send(world.tokens(3))
    taken, item = devices.take(0)
    devices.run()
    devices.epochs[0][0] += 1

    devices.answer(0, -1, item)
    devices.run()

    assert taken >= 0
    assert not devices.attention[0][0].any()


def test_the_bit_of_an_old_reply_is_not_added_to(twin: Twin) -> None:
    """Bit 0 is still set from a dropped reply: the next reply leaves bit 1 alone, and is received."""
    world = World()
    devices = Devices(twin, world)
    tokens = world.tokens(6)
    devices.attention[0][0][world.layout.attention_bitmaps] = 1

    devices.send(tokens)
    for e in (0, 1):
        devices.serve(e)
    out_SH = devices.receive(6)
    devices.run()

    np.testing.assert_array_equal(out_SH, tokens.expected)
    assert devices.attention[0][0][world.layout.attention_bitmaps] == 0
