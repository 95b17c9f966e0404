"""What only a real die can show; each test is a step of "Bringing it up" in docs/ascend.md. `make test-npu`.

ASCEND_HOME_PATH says where CANN is, and ASAP_KERNELS where the kernels are if not where `make ascend` puts them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asap_ray import _native
from asap_ray.backends.ascend.toolkit import BUILT_KERNELS, library_path, missing
from asap_ray.backends.host_ports import HostPorts
from asap_ray.config import ServeConfig, config_to
from asap_ray.errors import PeerTimeout
from asap_ray.spec import Combine, ParallelSpec, PrefillSpec, RowType
from tests.ascend.models_on_die import CASES, TOLERANCE
from tests.ascend.prompts import batch
from tests.ascend.test_engine import Running
from tests.ascend.test_processes import exchange
from tests.ascend.twin import ROOT
from tests.csrc.kinds import AscendKind
from tests.csrc.world import World

pytestmark = pytest.mark.npu

ROUNDS = 2000
WAIT_S = 0.5


class DieKind(AscendKind):
    """One process and one die: nobody opens a buffer by its key."""

    def peer(self, buffer: Any) -> Any:
        """The buffer itself."""
        return buffer


@pytest.fixture(scope="module")
def kernels() -> Path:
    """The folder of the kernels, on a machine with everything."""
    folder = Path(os.environ.get("ASAP_KERNELS", BUILT_KERNELS))
    if reasons := list(missing(folder)):
        pytest.skip("; ".join(reasons))
    return folder


@pytest.fixture(scope="module")
def kind(kernels: Path) -> DieKind:
    """The first die."""
    return DieKind(Path(library_path()), kernels)


def test_a_die_has_two_vector_cores_a_cube(kernels: Path) -> None:
    """Step 0; 4.3 divides 48 and 24."""
    vector, cube = _native.ascend.Die(library_path(), str(kernels), 0).cores

    assert vector == 2 * cube


def test_a_wait_is_as_long_as_it_says(kind: DieKind) -> None:
    """Step 2: kernels count cycles of 20 ns."""
    world = World(kind=kind)
    began_s = time.monotonic()

    with pytest.raises(PeerTimeout):
        world.devices[0].async_dispatch_recv(WAIT_S)

    assert WAIT_S <= time.monotonic() - began_s < 1.2 * WAIT_S


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("row_type", RowType)
def test_rows_come_back_multiplied(kind: DieKind, row_type: RowType, combine: Combine) -> None:
    """Step 3, on one die: two devices, every type, both ways of combining, both slots."""
    world = World(kind=kind, row_type=row_type, compute_type=row_type, combine=combine)
    sent = [world.tokens(5, seed) for seed in range(2)]

    for slot, tokens in enumerate(sent):
        world.send(tokens, slot=slot)
    for _ in sent:
        for e in range(2):
            world.serve(e)

    for slot, tokens in enumerate(sent):
        np.testing.assert_array_equal(world.receive(5, slot=slot), tokens.expected)


@pytest.mark.parametrize("reach", ["server", "supernode"])
def test_payload_comes_before_its_bit(kernels: Path, reach: str) -> None:
    """Steps 3 and 4: two dies in two processes, by IPC key and by fabric handle; every row of every round counts."""
    exchange(Path(library_path()), kernels, reach, ROUNDS, ASCEND_RT_VISIBLE_DEVICES="1")


def test_operators_take_tensors_of_a_die(kernels: Path, tmp_path: Path) -> None:
    """Step 5: one layer by `torch.ops.asap`, the super kernel in it, as on the host."""
    if importlib.util.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.ascend.on_npu", library_path(), str(kernels)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"ASAP_FOUND": str(found)}, check=True, timeout=500)

    assert json.loads(found.read_text())["difference"] < 1e-3


@pytest.mark.usefixtures("kernels")
def test_attention_on_a_die_is_that_of_the_host(tmp_path: Path) -> None:
    """Step 6: whole models, each kind of attention, float32 and bfloat16."""
    if importlib.util.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.ascend.models_on_npu", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"ASAP_FOUND": str(found)}, check=True, timeout=500)
    outcomes = json.loads(found.read_text())

    wrong = {str(c): outcomes[str(c)] for c in CASES if outcomes[str(c)].get("difference", 1) >= TOLERANCE[c.dtype]}
    assert wrong == {}
    assert [str(c) for c in CASES if not outcomes[str(c)]["same_tokens"]] == []


def test_an_instance_answers_as_on_the_host(kernels: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Step 6: three dies, Ray actors."""
    config = ServeConfig(
        model=str(tiny_model),
        name="npu",
        device="npu",
        kernels=str(kernels),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=2),
        prefill=PrefillSpec(max_tokens=32, solo_tokens=16, inflection_tokens=4, deadline_s=60.0),
    )
    path, found = tmp_path / "config.json", tmp_path / "found.json"
    path.write_text(json.dumps(config_to(config)))
    command = [sys.executable, "-m", "tests.ascend.instance_on_npu", str(path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"ASAP_FOUND": str(found)}, check=True, timeout=500)
    running = Running(dataclasses.replace(config, device="cpu"), HostPorts)
    running.put(batch())
    expected = running.first_tokens()

    assert json.loads(found.read_text())["token_ids"] == [token.token_id for token in expected]
