"""The twin catches kernels that are wrong: nearly always, whatever the seed."""

# Shapes: R rows of an item grouped by expert, H hidden.

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asap_ray.spec import NUM_SLOTS
from tests.ascend.bugs import BUGS
from tests.ascend.devices import OK, Devices
from tests.ascend.twin import Twin, Wrong, build
from tests.csrc.world import SLOT_ROWS, Tokens, World

pytestmark = pytest.mark.thorough

SEEDS = 20
RIGHT_SEEDS = 200  # of three scenarios each
PATIENCE_CYCLES = 150_000
CAUGHT = 0.95
TURNS = 3
MESSAGES = 8  # one after the other into one slot


def small(library: Path) -> Devices:
    """One group of two ranks, two devices, two blocks each."""
    devices = Devices(Twin(library), World(tp=2, moe_devices=2), num_blocks=2)
    devices.timeout = PATIENCE_CYCLES
    return devices


def is_fine(devices: Devices, seed: int) -> bool:
    """Whether all kernels end and none complains."""
    try:
        return all(status[0, 0] == OK for status in devices.run(seed))
    except Wrong:
        return False


def rounds(library: Path, seed: int) -> bool:
    """Two batches in flight, there and back: every sum is right."""
    devices = small(library)
    received = []
    for turn in range(TURNS):
        for j in range(2):
            sent = [devices.world.tokens(5 + j + slot, seed=seed + 10 * turn + slot) for slot in range(2)]
            for slot, tokens in enumerate(sent):
                devices.send(tokens, 0, j, slot, sequence=turn + 1)
            received += [(devices.receive(len(t.hidden_SH), 0, j, slot), t) for slot, t in enumerate(sent)]
    for e in range(2):
        for _ in range(2 * TURNS):
            devices.serve(e, streams=(0, 1, 2))
    return is_fine(devices, seed) and all(np.array_equal(out_SH, tokens.expected) for out_SH, tokens in received)


def rows_of(devices: Devices, e: int, sent: list[Tokens]) -> NDArray[np.float32]:
    """rows_RH of the item these ranks' messages make on device e."""
    parts = [
        tokens.hidden_SH[np.any(tokens.expert_ids_SK == x, axis=1)]
        for x in devices.world.instance.experts_of(e)
        for tokens in sent
    ]
    return np.concatenate(parts)


def has_rows(devices: Devices, e: int, item: NDArray[np.uint8], sent: list[Tokens]) -> bool:
    """Whether an item is of these messages."""
    expected_RH = rows_of(devices, e, sent)
    start = devices.twin.size("item_rows", devices.fields)
    return np.array_equal(item[start:].view(np.float32)[: expected_RH.size], expected_RH.ravel())


def pressure(library: Path, seed: int) -> bool:
    """Message after message into one slot, held back by credit alone: every item has its own rows."""
    devices = small(library)
    turns = [[devices.world.tokens(6, seed=seed + 10 * turn + j) for j in range(2)] for turn in range(MESSAGES)]
    for turn, sent in enumerate(turns):
        for j, tokens in enumerate(sent):
            devices.send(tokens, 0, j, sequence=turn + 1)
    items = [[devices.take(e)[1] for _ in turns] for e in range(2)]
    if not is_fine(devices, seed):
        return False
    return all(has_rows(devices, e, item, sent) for e in range(2) for item, sent in zip(items[e], turns, strict=True))


def heirs(library: Path, seed: int) -> bool:
    """A group dies and comes back while its solo message is read: the items have the dead one's rows."""
    devices = small(library)
    dead = [devices.world.tokens(NUM_SLOTS * SLOT_ROWS, seed=seed + j) for j in range(2)]
    for j, tokens in enumerate(dead):
        devices.send(tokens, 0, j)
    if not is_fine(devices, seed):
        return False
    devices.come_back()
    items = [devices.take(e)[1] for e in range(2)]
    for j in range(2):
        devices.send(devices.world.tokens(SLOT_ROWS, seed=seed + 2 + j), 0, j, slot=1)
    return is_fine(devices, seed) and all(has_rows(devices, e, item, dead) for e, item in enumerate(items))


def is_right(library: Path, seed: int) -> bool:
    """Whether kernels pass everything above."""
    return rounds(library, seed) and pressure(library, seed) and heirs(library, seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name: str) -> None:
    """In at least 95 % of seeds, by a fault, a status, a hang or a wrong number."""
    library = build(BUGS[name].planted(name.replace(" ", "-")), f"bug-{name.replace(' ', '-')}")

    caught = sum(not is_right(library, seed) for seed in range(SEEDS))

    assert caught >= CAUGHT * SEEDS


@pytest.mark.timeout(300)
def test_right_kernels_give_no_false_alarm(library: Path) -> None:
    """The same instances, many more seeds, nothing planted."""
    assert [seed for seed in range(RIGHT_SEEDS) if not is_right(library, seed)] == []
