"""What the primitives refuse: bad arguments, too many rows, corrupt and stale messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asap_ray import _native
from asap_ray.errors import CorruptMessage, Overflow, PeerTimeout
from tests.csrc.kinds import Kind
from tests.csrc.world import PATIENCE_S, SLOT_ROWS, Calling, World


def test_a_solo_batch_has_the_group_to_itself(world: World) -> None:
    """While it is in flight the other slot is refused, before anything is written."""
    world.send(world.tokens(SLOT_ROWS + 1))

    with pytest.raises(ValueError, match="a solo batch of more than 16 rows uses both slots"):
        world.send(world.tokens(1), slot=1)


@pytest.mark.parametrize(("slot", "num_tokens", "room"), [(0, 33, 32), (1, 17, 16)])
def test_too_many_rows_overflow(world: World, slot: int, num_tokens: int, room: int) -> None:
    """A slot holds slot_rows, slot 0 alone twice as many; the slot stays free."""
    with pytest.raises(Overflow, match=f"slot {slot}: {num_tokens} rows, room for {room}"):
        world.send(world.tokens(num_tokens), slot=slot)

    world.send(world.tokens(room), slot=slot)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0, 1, 7], "token 1: expert 7 is not in 0..6"),
        ([0, -1, 2], "token 1: expert -1 is not in 0..6"),
        ([4, 2, 4], "token 1: expert 4 is chosen twice"),
    ],
)
def test_a_bad_expert_id_is_refused_before_anything_is_written(world: World, ids: list[int], text: str) -> None:
    """The error names token and expert, and the devices see nothing."""
    tokens = dataclasses.replace(world.tokens(2), expert_ids_SK=np.int32([[0, 1, 2], ids]))
    seen = world.kind.bytes_of(world.moe_buffers[0])[world.layout.moe_bitmaps :]  # behind doorbells, where others wait
    before = bytes(seen)

    with pytest.raises(ValueError, match=text):
        world.send(tokens)

    assert bytes(seen) == before


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("hidden", lambda a: a[:, :-1], r"hidden has shape \[4, 19\], expected \[4, 20\]"),
        ("hidden", np.asfortranarray, "hidden is not C-contiguous"),
        ("hidden", lambda a: a.astype(np.float64), "hidden has elements of format 'd'"),
        ("hidden", lambda a: a.astype(np.uint16), "hidden has elements of format 'H'"),
        ("expert_ids", lambda a: a.astype(np.int64), "expert_ids has elements of format"),
        ("weights", lambda a: a[:2], r"weights has shape \[2, 3\], expected \[4, 3\]"),
    ],
)
def test_arrays_are_checked(world: World, name: str, change: Callable[[Any], Any], text: str) -> None:
    """Shape, element type and order; a float32 instance takes no 16-bit rows."""
    tokens = world.tokens(4)
    arrays = {"hidden": tokens.hidden_SH, "expert_ids": tokens.expert_ids_SK, "weights": tokens.weights_SK}
    arrays[name] = change(arrays[name])

    with pytest.raises(ValueError, match=text):
        world.ranks[0][0].async_dispatch_send(slot=0, layer=0, timeout_s=PATIENCE_S, **arrays)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (4, 99, "layer=99 is not in 0..3"),
        (4, -1, "layer=-1 is not in 0..3"),
        (5, 33, "num_rows=33, room for 32"),
        (5, -1, "num_rows=-1, room for 32"),
        (6, 10_000, "num_pairs=10000 of .* rows, room for 96"),
        (6, 7, "rows per expert sum to .*, num_pairs=7"),
        (7, -1, "reply_offset=-1 of .* rows, room for 64"),
        (7, 63, "reply_offset=63 of .* rows, room for 64"),
        (16, -1, "-1 rows of one expert"),
    ],
)
def test_a_corrupt_header_is_refused(world: World, field: int, value: int, text: str) -> None:
    """The error names sender and value; the slot is free again and the next message is served."""
    tokens = dataclasses.replace(world.tokens(4), expert_ids_SK=np.int32([[0, 1, 2]] * 4))
    world.send(tokens)
    world.header(e=0)[field] = value

    with pytest.raises(CorruptMessage, match=f"group 0 rank 0 slot 0: {world.kind.reason(text)}"):
        world.devices[0].async_dispatch_recv(PATIENCE_S)

    world.send(world.tokens(2), slot=1)
    assert world.devices[0].async_dispatch_recv(PATIENCE_S).slot == 1


def test_a_row_index_outside_the_message_is_refused(world: World) -> None:
    """It would read another message's rows."""
    world.send(dataclasses.replace(world.tokens(4), expert_ids_SK=np.int32([[0, 1, 2]] * 4)))
    layout = world.layout
    np.frombuffer(world.kind.bytes_of(world.moe_buffers[0]), np.int32, 1, layout.moe_regions + layout.region_row_idx)[
        0
    ] = 4

    with pytest.raises(CorruptMessage, match="group 0 rank 0 slot 0: " + world.kind.reason("row_idx=4, num_rows=4")):
        world.devices[0].async_dispatch_recv(PATIENCE_S)


def test_ranks_that_disagree_on_the_layer_are_refused(backend: Kind) -> None:
    """The one that differs is named."""
    world = World(kind=backend, tp=2)
    world.send(world.tokens(1), j=0, layer=1)
    world.send(world.tokens(1), j=1, layer=2)

    text = world.kind.reason("layer=2 sequence=1, but rank 0 sent layer=1")
    with pytest.raises(CorruptMessage, match=f"rank 1 slot 0: {text}"):
        world.devices[0].async_dispatch_recv(PATIENCE_S)


def test_messages_of_a_dead_epoch_are_dropped(backend: Kind) -> None:
    """One rank of the old incarnation had sent; the new one's message is served, the old never."""
    world = World(kind=backend, tp=2)
    world.send(world.tokens(3), j=0)
    world.restart_group(0)
    sent = [world.tokens(5, seed=1), world.tokens(6, seed=2)]

    sending = [Calling(lambda j=j: world.send(sent[j], j=j, layer=2)) for j in range(2)]
    assert [world.serve(e).layer for e in range(2)] == [2, 2]
    for call in sending:
        call.result()

    np.testing.assert_array_equal(world.receive(5, j=0), sent[0].expected)
    np.testing.assert_array_equal(world.receive(6, j=1), sent[1].expected)


def test_results_for_a_dead_epoch_are_dropped(world: World) -> None:
    """The group died while the device computed: its buffer and its successor's stay as they were."""
    world.send(world.tokens(4))
    item = world.devices[0].async_dispatch_recv(PATIENCE_S)
    dead = world.attention_buffers[0][0]
    before = bytes(world.kind.bytes_of(dead))

    world.restart_group(0)
    world.devices[0].async_combine_send(item, item.rows)

    assert bytes(world.kind.bytes_of(dead)) == before
    heir = world.attention_buffers[0][0]
    assert heir is dead or not any(bytes(world.kind.bytes_of(heir)))


def test_a_reply_to_an_older_message_is_dropped(world: World) -> None:
    """A leftover bit with an old sequence number neither ends the wait nor hides the real reply."""
    world.send(world.tokens(4, seed=1))
    for e in (0, 1):
        world.serve(e)
    world.receive(4)
    tokens = world.tokens(4, seed=2)
    world.send(tokens)
    np.frombuffer(world.kind.bytes_of(world.attention_buffers[0][0]), np.uint64, 1, world.layout.attention_bitmaps)[
        0
    ] = 0b11

    with pytest.raises(PeerTimeout, match=r"0, 1$"):
        world.ranks[0][0].async_combine_recv(0, np.empty_like(tokens.hidden_SH), timeout_s=0.02)
    for e in (0, 1):
        world.serve(e)

    np.testing.assert_array_equal(world.receive(4), tokens.expected)


def test_a_slot_in_flight_is_refused(world: World) -> None:
    """Its results would land in the next message's."""
    world.send(world.tokens(1), layer=3)

    with pytest.raises(ValueError, match="group 0 rank 0 slot 0 layer 3 still waits for its results"):
        world.send(world.tokens(1))


def test_nothing_in_flight_is_refused(world: World) -> None:
    """There is nothing to wait for."""
    with pytest.raises(ValueError, match="slot 1 has no message in flight"):
        world.receive(0, slot=1)


def test_a_layout_that_leaves_its_buffer_is_refused(world: World) -> None:
    """Checked once, before any pointer is formed."""
    fields = dataclasses.asdict(world.layout) | {"moe_bytes": world.layout.moe_bytes - 512}
    world.native_layout = _native.Layout(**fields)

    with pytest.raises(ValueError, match=r"moe_regions at .* bytes end behind"):
        world.open_rank(0, 0)
