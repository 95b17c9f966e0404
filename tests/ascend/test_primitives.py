"""The four primitives on the twin: byte for byte the host's messages, and any mix of the two sides."""

# Shapes: S tokens, H hidden, K experts per token.

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from asap_ray.layout import Layout
from asap_ray.spec import NUM_SLOTS, Combine, RowType
from tests.ascend.devices import OK, Devices, message_bytes, words
from tests.ascend.twin import Twin
from tests.csrc.test_placement import in_turn
from tests.csrc.world import SLOT_ROWS, World

PLACES = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]


def test_kernels_read_the_layout_of_python(twin: Twin) -> None:
    """Every field of asap_ray/layout.py is where the kernels look for it."""
    names = [field.name for field in dataclasses.fields(Layout)]

    assert [twin.library.asap_layout_place(name.encode()) for name in names] == list(range(30))


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("row_type", RowType)
def test_messages_are_the_hosts_byte_for_byte(twin: Twin, combine: Combine, row_type: RowType) -> None:
    """Header, counts, row indices, weights and rows of every message, and the bits that announce them."""
    world = World(dp_groups=2, tp=2, row_type=row_type, compute_type=row_type, combine=combine)

    check_messages(twin, world)


@pytest.mark.parametrize("num_places", [7, 8, 11, 21])
def test_a_place_is_chosen_as_the_host_chooses_it(twin: Twin, num_places: int) -> None:
    """Seven experts in up to all places of three devices: the same messages again."""
    check_messages(twin, World(dp_groups=2, tp=2, moe_devices=3, placement=in_turn(7, num_places, 3)))


def check_messages(twin: Twin, world: World) -> None:
    """Messages of all ranks in both slots, in buffers of the host's and of the kernels' own."""
    devices = Devices(twin, world, num_blocks=2)

    for i, j, slot in PLACES:
        tokens = world.tokens(3 * i + 5 * j + slot, seed=i + 2 * j)
        world.send(tokens, i, j, slot, layer=i + j)
        devices.send(tokens, i, j, slot, layer=i + j)
    devices.run()

    for ours, host in zip(devices.moe, [np.frombuffer(b, dtype=np.uint8) for b in world.moe_buffers], strict=True):
        assert words(world.layout, ours).tolist() == words(world.layout, host).tolist()
        for place in PLACES:
            pairs = zip(message_bytes(world.layout, ours, place), message_bytes(world.layout, host, place), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("attention", ["host", "ascend"])
@pytest.mark.parametrize("moe", ["host", "ascend"])
def test_host_and_ascend_serve_each_other(twin: Twin, combine: Combine, attention: str, moe: str) -> None:
    """In the same buffers, whichever side is which: every token gets its sum."""
    world = World(dp_groups=2, tp=2, combine=combine)
    devices = Devices(twin, world, own_buffers=False, num_blocks=3)
    sent = {(i, j): world.tokens(4 * i + 7 * j, seed=i + 2 * j) for i in range(2) for j in range(2)}

    for (i, j), tokens in sent.items():
        (devices if attention == "ascend" else world).send(tokens, i, j)
    devices.run()
    for e in [0, 1, 0, 1]:
        (devices if moe == "ascend" else world).serve(e)
    devices.run()
    side = devices if attention == "ascend" else world
    received = {(i, j): side.receive(len(tokens.hidden_SH), i, j) for (i, j), tokens in sent.items()}
    devices.run()

    for place, tokens in sent.items():
        np.testing.assert_array_equal(received[place], tokens.expected)


@pytest.mark.parametrize("seed", range(12))
def test_whole_instances_at_once(twin: Twin, seed: int) -> None:
    """Random shapes, two batches in flight, three streams a device, two rounds: every sum is right."""
    rng = np.random.default_rng(seed)
    row_type, combine = list(RowType)[seed % 3], list(Combine)[seed % 2]
    tp, moe_devices = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    shape = {"dp_groups": int(rng.integers(1, 3)), "tp": tp, "moe_devices": moe_devices}
    world = World(**shape, row_type=row_type, compute_type=row_type, combine=combine)
    devices = Devices(twin, world, num_blocks=int(rng.integers(1, 4)))
    groups = range(shape["dp_groups"])
    ranks = [(i, j) for i in groups for j in range(tp)]

    received = []
    for turn in range(2):
        for i, j in ranks:
            sent = [world.tokens(int(rng.integers(0, SLOT_ROWS // 2)), seed=int(rng.integers(99))) for _ in range(2)]
            for slot, tokens in enumerate(sent):
                devices.send(tokens, i, j, slot, layer=turn, sequence=turn + 1)
            received += [(devices.receive(len(t.hidden_SH), i, j, slot), t) for slot, t in enumerate(sent)]
    for e in range(moe_devices):
        for _ in range(2 * NUM_SLOTS * len(groups)):
            devices.serve(e, streams=(0, 1, 2))
    devices.run(seed)

    for out_SH, tokens in received:
        np.testing.assert_array_equal(devices.floats(out_SH), tokens.expected)


def test_a_solo_batch_spans_both_slots(twin: Twin) -> None:
    """Up to twice slot_rows fit in slot 0 (3.3.2)."""
    world = World()
    devices = Devices(twin, world, num_blocks=2)
    tokens = world.tokens(NUM_SLOTS * SLOT_ROWS)

    devices.send(tokens)
    for e in (0, 1):
        devices.serve(e)
    out_SH = devices.receive(len(tokens.hidden_SH))
    devices.run()

    np.testing.assert_array_equal(out_SH, tokens.expected)


@pytest.mark.parametrize("combine", Combine)
def test_rows_longer_than_a_cores_buffer(twin: Twin, combine: Combine) -> None:
    """20,000 bytes go through 16 KB in two pieces."""
    world = World(moe_devices=1, hidden=5000, combine=combine)
    devices = Devices(twin, world, num_blocks=2)
    tokens = world.tokens(2)

    devices.send(tokens)
    devices.serve(0)
    out_SH = devices.receive(2)
    devices.run()

    np.testing.assert_array_equal(out_SH, tokens.expected)


def test_a_sequence_has_64_bits(twin: Twin) -> None:
    """Both halves are in the message, in the item, in the reply and in what the rank waits for."""
    world = World(moe_devices=1)
    devices = Devices(twin, world)
    tokens, sequence = world.tokens(2), (5 << 32) + 6

    devices.send(tokens, sequence=sequence)
    devices.run()
    sent = message_bytes(world.layout, devices.moe[0], (0, 0, 0))[0].view(np.uint64)[1]
    devices.serve(0)
    out_SH = devices.receive(2)
    devices.run()

    assert int(sent) == sequence
    np.testing.assert_array_equal(out_SH, tokens.expected)


def test_round_robin_serves_every_place(twin: Twin) -> None:
    """With three groups ready in both slots, three items come from three places."""
    world = World(dp_groups=3, moe_devices=1)
    devices = Devices(twin, world)
    for i in range(3):
        devices.send(world.tokens(0), i)
        devices.send(world.tokens(0), i, slot=1)

    items = [devices.take(0)[1] for _ in range(3)]
    statuses = devices.run()

    assert [status[0, 0] for status in statuses] == [OK] * len(statuses)
    assert len({tuple(item.view(np.int32)[:2]) for item in items}) == 3
