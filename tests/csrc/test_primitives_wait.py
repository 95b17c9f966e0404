"""Whom each primitive waits for, and how a wait ends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from asap_ray.errors import Closed, PeerTimeout
from tests.csrc.kinds import Kind
from tests.csrc.world import SLOT_ROWS, Calling, World

SHORT_S = 0.02


def test_a_send_waits_for_the_credit(world: World) -> None:
    """The second message to a slot is written only after the first was taken (back-pressure)."""
    first, second = world.tokens(0), dataclasses.replace(world.tokens(3), expert_ids_SK=np.int32([[4, 5, 6]] * 3))
    world.send(first)
    world.receive(0)

    sending = Calling(lambda: world.send(second, layer=2))
    assert [world.serve(e).layer for e in (1, 0)] == [1, 1]
    sending.result()

    assert [world.serve(e).layer for e in (1, 0)] == [2, 2]
    np.testing.assert_array_equal(world.receive(3), second.expected)


def test_a_busy_device_does_not_delay_a_free_one(world: World) -> None:
    """Device 0 has not taken the last message; device 1 gets the next one all the same."""
    world.send(world.tokens(0))
    world.receive(0)
    world.serve(1)

    sending = Calling(lambda: world.send(world.tokens(2), layer=2))
    assert world.serve(1).layer == 2
    world.serve(0)
    sending.result()


def test_send_timeout_names_the_busy_devices(world: World) -> None:
    """Who waited, for whom, how long."""
    world.send(world.tokens(0))
    world.receive(0)
    world.serve(1)
    tokens = world.tokens(2)

    with pytest.raises(PeerTimeout, match=r"dispatch_send: group 0 rank 0 slot 0 layer 3 .* MoE device\(s\) 0$"):
        world.ranks[0][0].async_dispatch_send(0, 3, tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK, SHORT_S)


def test_backpressure_is_counted_by_device(world: World) -> None:
    """Device 0 has not taken the last message: the whole wait is its, and no wait is nobody's."""
    world.send(world.tokens(0))
    world.receive(0)
    world.serve(1)
    before_s = world.ranks[0][0].backpressure_s
    tokens = world.tokens(2)

    with pytest.raises(PeerTimeout):
        world.ranks[0][0].async_dispatch_send(0, 3, tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK, SHORT_S)

    assert before_s == [0.0, 0.0]
    waited_s = world.ranks[0][0].backpressure_s
    assert (waited_s[0] > 0, waited_s[1]) == (True, 0.0)


def test_a_wait_for_two_devices_is_divided(world: World) -> None:
    """Neither device has taken the last message: half of the wait is each one's."""
    world.send(world.tokens(0))
    world.receive(0)
    tokens = world.tokens(2)

    with pytest.raises(PeerTimeout):
        world.ranks[0][0].async_dispatch_send(0, 3, tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK, SHORT_S)

    first_s, second_s = world.ranks[0][0].backpressure_s
    assert (first_s == second_s, first_s > 0) == (True, True)


def test_receive_timeout_names_the_silent_devices(backend: Kind) -> None:
    """combine_recv may be called again after it gave up."""
    world = World(kind=backend, moe_devices=3)
    tokens = world.tokens(SLOT_ROWS)
    world.send(tokens, layer=2)
    world.serve(1)
    out_SH = np.empty_like(tokens.hidden_SH)

    with pytest.raises(PeerTimeout, match=r"combine_recv: group 0 rank 0 slot 0 layer 2 waited 0.02 s for .* 0, 2$"):
        world.ranks[0][0].async_combine_recv(0, out_SH, SHORT_S)
    world.serve(0)
    world.serve(2)

    np.testing.assert_array_equal(world.receive(SLOT_ROWS), tokens.expected)


def test_dispatch_recv_times_out_on_half_a_message(backend: Kind) -> None:
    """Rank 1 never sends its part."""
    world = World(kind=backend, tp=2)
    world.send(world.tokens(1), j=0)

    with pytest.raises(PeerTimeout, match=r"MoE device 0 waited 0.02 s for group 0 rank 1 slot 0$"):
        world.devices[0].async_dispatch_recv(SHORT_S)


def test_an_idle_device_waits_until_it_is_closed(world: World) -> None:
    """Nothing sent is no failure, whatever the deadline; abort ends the wait, and every later one."""
    waiting = Calling(lambda: world.devices[0].async_dispatch_recv(SHORT_S))
    world.devices[0].abort()

    with pytest.raises(Closed, match="stopping"):
        waiting.result()
    with pytest.raises(Closed):
        world.devices[0].async_dispatch_recv(SHORT_S)


def test_abort_ends_both_waits_of_attention(world: World) -> None:
    """A rank that waits for results, and one that wants to send."""
    world.send(world.tokens(2))
    waiting = Calling(lambda: world.receive(2))
    world.ranks[0][0].abort()

    with pytest.raises(Closed):
        waiting.result()
    with pytest.raises(Closed):
        world.send(world.tokens(2), slot=1)
