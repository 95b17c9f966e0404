"""A rank and a MoE device in two processes that share device memory by key, over the fake runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asap_ray import _native
from tests.ascend.twin import ROOT, fake_runtime, kernels_folder
from tests.csrc.kinds import AscendKind
from tests.csrc.world import PATIENCE_S, World

DEVICE = """
import sys
from tests.csrc.kinds import AscendKind
from tests.csrc.world import World
from asap_ray import _native
from pathlib import Path
library, kernels, reach, rounds = sys.argv[1:]
kind = AscendKind(Path(library), Path(kernels), reach)
world = World(kind=kind, moe_devices=1)
print(world.moe_buffers[0].key.hex(), flush=True)
rank = kind.opened(bytes.fromhex(input()), world.layout.attention_bytes)
world.attention_buffers = [[rank]]
world.devices = [world.open_device(0)]
for _ in range(int(rounds)):
    world.serve(0)
print("served", flush=True)
input()
"""


def exchange(library: Path, kernels: Path, reach: str, rounds: int = 1, **variables: str) -> None:
    """A rank here and a MoE device in a process with other variables: every round's rows come back multiplied."""
    kind = AscendKind(library, kernels, reach)
    world = World(kind=kind, moe_devices=1)
    command = [sys.executable, "-c", DEVICE, str(library), str(kernels), reach, str(rounds)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT, env=os.environ | variables) as device:
        assert device.stdin
        assert device.stdout
        key = bytes.fromhex(device.stdout.readline())
        world.moe_buffers = [kind.opened(key, world.layout.moe_bytes)]
        world.ranks = [[world.open_rank(0, 0)]]

        device.stdin.write(world.attention_buffers[0][0].key.hex() + "\n")
        device.stdin.flush()
        for seed in range(rounds):
            tokens = world.tokens(5, seed)
            world.send(tokens)
            np.testing.assert_array_equal(world.receive(5), tokens.expected)

        device.communicate("\n", timeout=PATIENCE_S)


@pytest.mark.parametrize("reach", ["server", "supernode"])
def test_two_processes_share_buffers_by_key(library: Path, reach: str) -> None:
    """By IPC keys and by fabric handles."""
    assert library
    exchange(fake_runtime(), kernels_folder(), reach, rounds=2)


def test_a_peer_that_is_gone_is_an_error(library: Path) -> None:
    """The runtime's own words, with the call that failed."""
    assert library
    die = _native.ascend.Die(str(fake_runtime()), str(kernels_folder()), 0)

    with pytest.raises(OSError, match="aclrtIpcMemImportByKey returned 107000: /proc/1/fd/999: its owner is gone"):
        _native.ascend.SharedBuffer.open(die, b"/proc/1/fd/999", 4096)
