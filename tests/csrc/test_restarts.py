"""A MoE device dies at each step of its work and another takes its place: every sum is right, nothing asked twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asap_ray.errors import PeerTimeout
from asap_ray.spec import Combine, RowType
from tests.csrc.kinds import Kind
from tests.csrc.world import PATIENCE_S, SLOT_ROWS, Calling, Tokens, World

SHORT_S = 0.02


def nothing(_: World) -> None:
    """Device 0 has not looked yet."""


def take(world: World) -> None:
    """Device 0 has its rows and has given the credit."""
    world.devices[0].async_dispatch_recv(PATIENCE_S)


def answer_without_the_bit(world: World) -> None:
    """Device 0 has written results and header, and dies before it sets its bit."""
    world.serve(0)
    for slot in range(2):
        start = world.layout.attention_bitmaps + slot * world.layout.bitmap_words * 512
        memory = world.kind.bytes_of(world.attention_buffers[0][0])
        np.frombuffer(memory, np.uint64, 1, start)[0] &= ~np.uint64(1)


def to_expert(tokens: Tokens, *experts: int) -> Tokens:
    """All rows to these experts: 0 to 2 are on device 0, 3 to 6 on device 1."""
    return dataclasses.replace(tokens, expert_ids_SK=np.int32([experts] * len(tokens.hidden_SH)))


def is_idle(device: Any) -> bool:
    """Whether a device has no message, in part or in whole."""
    waiting = Calling(lambda: device.async_dispatch_recv(SHORT_S))
    device.abort()
    try:
        waiting.result()
    except PeerTimeout:
        return False
    except Exception:
        return True
    return False


@pytest.mark.parametrize("step", [nothing, take, answer_without_the_bit])
@pytest.mark.parametrize("num_tokens", [5, SLOT_ROWS, 2 * SLOT_ROWS])
@pytest.mark.parametrize(
    ("row_type", "combine"), [(RowType.FLOAT32, Combine.REDUCED), (RowType.BFLOAT16, Combine.PER_EXPERT)]
)
def test_what_is_owed_is_sent_again(
    backend: Kind, step: Callable[[World], None], num_tokens: int, row_type: RowType, combine: Combine
) -> None:
    """Dead before it took the message, with the rows, or just before its bit; solo batches fill both slots."""
    world = World(row_type=row_type, compute_type=row_type, combine=combine, kind=backend)
    tokens = world.tokens(num_tokens)
    world.send(tokens)
    step(world)

    world.restart_device(0)
    for e in (0, 1):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(num_tokens), tokens.expected)


def test_both_slots_are_sent_again(world: World) -> None:
    """Two batches in flight, one of them taken by the dead device."""
    sent = [world.tokens(7, seed=1), world.tokens(9, seed=2)]
    world.send(sent[0], slot=0)
    take(world)
    world.send(sent[1], slot=1, layer=2)

    world.restart_device(0)
    for _ in range(2):
        world.serve(0)
        world.serve(1)

    for slot, tokens in enumerate(sent):
        np.testing.assert_array_equal(world.receive(len(tokens.hidden_SH), slot=slot), tokens.expected)


def test_what_was_answered_is_not_asked_again(world: World) -> None:
    """The answer of the dead device counts, and its successor has nothing to do."""
    tokens = world.tokens(6)
    world.send(tokens)
    world.serve(0)

    world.restart_device(0)
    world.serve(1)

    np.testing.assert_array_equal(world.receive(6), tokens.expected)
    assert is_idle(world.devices[0])


def test_a_successor_dies_too(world: World) -> None:
    """The third device gets the rows from the second one's buffer."""
    tokens = world.tokens(6)
    world.send(tokens)

    for _ in range(2):
        world.restart_device(0)
        take(world)
    world.restart_device(0)
    for e in (0, 1):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(6), tokens.expected)


def test_a_wait_for_results_goes_on_with_the_successor(world: World) -> None:
    """The rank waits while the device is replaced; nobody tells its thread."""
    tokens = world.tokens(6)
    world.send(tokens)
    waiting = Calling(lambda: world.receive(6))

    world.restart_device(0)
    for e in (0, 1):
        world.serve(e)

    np.testing.assert_array_equal(waiting.result(), tokens.expected)


def test_a_wait_for_room_ends_with_the_successor(world: World) -> None:
    """The dead device never gave the credit for an empty message; the next one goes to its successor, once."""
    world.send(world.tokens(0))
    world.receive(0)
    tokens = world.tokens(6)
    sending = Calling(lambda: world.send(tokens, layer=2))
    world.serve(1)

    world.restart_device(0)
    sending.result()

    assert [world.serve(e).layer for e in (0, 1)] == [2, 2]
    np.testing.assert_array_equal(world.receive(6), tokens.expected)


def test_a_wait_is_patient_while_a_device_is_replaced(world: World) -> None:
    """However long its process takes to start; from then on deadlines count again."""
    tokens = world.tokens(6)
    world.send(tokens)
    world.serve(1)
    world.ranks[0][0].be_patient(PATIENCE_S)
    waiting = Calling(lambda: world.receive(6, timeout_s=0.5))
    assert not waiting.is_over(0.95)
    world.restart_device(0)
    assert not waiting.is_over(0.2)  # its deadline moved with the replacement
    world.serve(0)
    np.testing.assert_array_equal(waiting.result(), tokens.expected)

    world.send(tokens, layer=2)
    with pytest.raises(PeerTimeout):
        world.receive(6, timeout_s=SHORT_S)


def test_a_rank_that_is_owed_nothing_sends_an_empty_message(backend: Kind) -> None:
    """With T = 2 the device waits for both; rank 1 had no rows for it."""
    world = World(tp=2, kind=backend)
    sent = [to_expert(world.tokens(5, seed=1), 0, 1, 4), to_expert(world.tokens(5, seed=2), 3, 4, 5)]
    for j in (0, 1):
        world.send(sent[j], j=j)

    world.restart_device(0)
    for e in (0, 1):
        world.serve(e)

    for j in (0, 1):
        np.testing.assert_array_equal(world.receive(5, j=j), sent[j].expected)


def test_a_message_older_than_its_neighbours_is_dropped(backend: Kind) -> None:
    """Rank 1 has yet to leave message 1 when the device is replaced, rank 0 is at message 2 already."""
    world = World(tp=2, kind=backend)
    for j in (0, 1):
        world.send(to_expert(world.tokens(2), 3, 4, 5), j=j)
    for e in (0, 1):
        world.serve(e)
    for j in (0, 1):
        world.receive(2, j=j)
    sent = [world.tokens(5, seed=1), world.tokens(5, seed=2)]
    world.send(sent[0], j=0, layer=2)

    world.restart_device(0)
    sending = Calling(lambda: world.send(sent[1], j=1, layer=2))

    assert [world.serve(e).layer for e in (0, 1)] == [2, 2]
    sending.result()
    for j in (0, 1):
        np.testing.assert_array_equal(world.receive(5, j=j), sent[j].expected)


def test_an_idle_rank_says_so_to_the_successor(backend: Kind) -> None:
    """Both ranks have what they wanted; the device gets an item without rows, and the next message as ever."""
    world = World(tp=2, kind=backend)
    for j in (0, 1):
        world.send(world.tokens(2), j=j)
    for e in (0, 1):
        world.serve(e)
    for j in (0, 1):
        world.receive(2, j=j)

    world.restart_device(0)

    assert world.serve(0).num_rows == 0
    tokens = world.tokens(5, seed=3)
    for j in (0, 1):
        world.send(tokens, j=j, layer=3)
    assert [world.serve(e).layer for e in (0, 1)] == [3, 3]
    np.testing.assert_array_equal(world.receive(5, j=1), tokens.expected)


def test_a_fresh_rank_sends_nothing_to_a_successor(world: World) -> None:
    """There was no message yet."""
    world.restart_device(0)

    assert is_idle(world.devices[0])


def test_a_new_group_is_served_beside_the_rows_of_the_old_one(world: World) -> None:
    """The device had taken the dead group's rows: its late results reach nobody, the new group's its own buffer."""
    world.send(world.tokens(4, seed=1))
    item = world.devices[0].async_dispatch_recv(PATIENCE_S)
    world.restart_group(0)
    tokens = world.tokens(4, seed=2)
    sending = Calling(lambda: world.send(tokens))

    world.devices[0].async_combine_send(item, item.rows)
    for e in (0, 1):
        world.serve(e)
    sending.result()

    np.testing.assert_array_equal(world.receive(4), tokens.expected)


def test_a_new_group_waits_for_the_dead_ones_solo_message(world: World) -> None:
    """It lies in both slots: until the devices have dropped it, slot 1 is not written to either."""
    if world.kind.name == "nixl":
        pytest.skip("a new rank has mirrors of its own there, in which nothing of a dead one lies")
    world.send(world.tokens(SLOT_ROWS + 1))
    world.restart_group(0)
    tokens = world.tokens(4, seed=2)
    with pytest.raises(PeerTimeout, match=r"for room on MoE device\(s\) 0, 1"):
        world.send(tokens, slot=1, timeout_s=SHORT_S)
    world.restart_group(0)
    sending = Calling(lambda: world.send(tokens, slot=1))

    for e in (0, 1):
        world.serve(e)
    sending.result()

    np.testing.assert_array_equal(world.receive(4, slot=1), tokens.expected)


@pytest.mark.parametrize(("e", "text"), [(2, "moe_device=2 is not in 0..1"), (-1, "moe_device=-1 is not in 0..1")])
def test_only_a_device_that_is_there_is_replaced(e: int, text: str) -> None:
    """The error names the number and the range."""
    world = World()
    with pytest.raises(ValueError, match=text):
        world.ranks[0][0].replace_device(e, world.moe_buffers[0])


def test_a_group_comes_back_whole(world: World) -> None:
    """As many buffers as ranks, each of the layout's size."""
    whole, small = world.kind.peer(world.attention_buffers[0][0]), world.kind.create("attention-0-0", 4096)

    with pytest.raises(ValueError, match="2 attention_buffers for 1 ranks of a group"):
        world.devices[0].replace_group(0, [whole, whole], 9)
    with pytest.raises(ValueError, match="an attention buffer has 4096 bytes"):
        world.devices[0].replace_group(0, [small], 9)
    with pytest.raises(ValueError, match="a MoE buffer has 4096 bytes"):
        world.ranks[0][0].replace_device(0, small)
