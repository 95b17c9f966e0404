"""The twin itself: what each small wrong kernel is told, and how streams share the cores of a die."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ascend.devices import Devices
from tests.ascend.twin import FLAGS, ROOT, TWIN, Place, Twin, Wrong
from tests.csrc.world import World

FAULTS = {
    "copied out while copied in": "hazard: MTE3 reads what MTE2 writes",
    "filled while copied out": "hazard: MTE2 writes what",
    "scalar write not ordered": "hazard: MTE3 reads what S writes",
    "scalar read not ordered": "hazard: S reads what MTE2 writes",
    "vector after vector": "what V writes, and nothing orders them",
    "nothing written": "copy out of what nothing has written",
    "buffer too large": "unified buffer: 196608 bytes asked for, it has 188160",
    "access behind the end": "access behind the end",
    "not a multiple of 32 bytes": "the hardware truncates to blocks of 32",
    "local side not aligned": "unified buffer not at 32 B",
    "outside every allocation": "outside every allocation",
    "flag set twice": "SetFlag MTE2_V twice without WaitFlag",
    "flag never set": "WaitFlag MTE2_V without SetFlag",
    "flag never waited for": "SetFlag without WaitFlag at the end",
    "reserved event": "event id 6 is not in 0..5",
    "atomic left on": "SetAtomicAdd is still on",
    "dirty cache": "a scalar write was never cleaned",
    "stale cache": "hang",
    "stale cache of the launch before": "hang",
    "cleaned and not awaited": "no DataSyncBarrier awaits it",
    "block that does not come": "hang",
    "products after a buffer": "Matmul registered after InitBuffer",
    "products in two calls": "Matmul registered twice",
    "products without their memory": "system workspace",
}
SEEDS = 30


@pytest.fixture(scope="module")
def faults(library: Path) -> ctypes.CDLL:
    """The small kernels."""
    assert library.exists()
    target = ROOT / "build/ascend/twin_faults.so"
    objects = [str(ROOT / f"build/ascend/{part}.o") for part in ("fiber", "memory", "core", "machine")]
    source = str(ROOT / "tests/ascend/twin_faults.cpp")
    command = ["g++", *FLAGS, f"-I{TWIN}", "-shared", source, *objects, "-o", str(target)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.twin_fault.restype = ctypes.c_char_p
    return loaded


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_told_so(faults: ctypes.CDLL, name: str) -> None:
    """By the same words, whatever the seed."""
    told = [faults.twin_fault(name.encode(), ctypes.c_uint64(seed)).decode() for seed in range(SEEDS)]

    assert [FAULTS[name] in words for words in told] == [True] * SEEDS


def test_a_right_kernel_is_told_nothing(faults: ctypes.CDLL) -> None:
    """Load, add, store, with the three orders it needs."""
    told = {faults.twin_fault(b"nothing wrong", ctypes.c_uint64(seed)) for seed in range(500)}

    assert told == {b""}


def idle(devices: Devices, place: Place) -> int:
    """A receiver that finds nothing and says so."""
    memory = devices.fields, devices.moe[0], devices.abort, devices.epochs[0], devices.cursors[0], devices.abort
    return devices.twin.launch("asap_dispatch_recv", place, *memory, devices.status(), 0, 0, 400)


def test_three_streams_fit_a_die(twin: Twin) -> None:
    """24 vector and 24 cube cores compute while 12 receive and 12 send (4.3)."""
    devices = Devices(twin, World(moe_devices=1, num_experts=3))
    item = twin.zeros(twin.size("item_bytes", devices.fields))
    table, space = twin.copy(np.zeros(64, dtype=np.uint64)), twin.zeros(24 * twin.size("super_kernel_bytes", 8))

    for stream in (1, 2):
        idle(devices, Place(0, stream, num_blocks=12))
    system = twin.zeros(twin.size("system_bytes"))
    memory = devices.fields, item, item, table, space, system, table, table, twin.zeros(64 * 24)
    twin.launch("asap_super_kernel", Place(0, 0, num_blocks=24), *memory, 0, 8, 0)

    devices.run()


def test_more_cores_than_a_die_has_are_refused(twin: Twin) -> None:
    """49 vector cores, where 48 are."""
    devices = Devices(twin, World(moe_devices=1))

    idle(devices, Place(0, num_blocks=49))

    with pytest.raises(Wrong, match="49 blocks; a device has 48 vector and 24 cube cores"):
        devices.run()
