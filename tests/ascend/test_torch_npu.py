"""The unmodified torch-npu wheel over the fake runtime: tensors of a die, and `torch.ops.asap` on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.documented import SCHEMAS
from tests.ascend.npu_venv import operators, run_module
from tests.ascend.twin import fake_runtime, kernels_folder

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(240)]  # torch-npu alone takes seconds of CPU to import


@pytest.fixture(scope="module")
def found(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process with two visible devices saw."""
    assert library
    path = tmp_path_factory.mktemp("npu") / "found.json"
    files = str(fake_runtime()), str(kernels_folder())
    run_module("tests.ascend.on_npu", *files, ASAP_FOUND=str(path), ASCEND_RT_VISIBLE_DEVICES="2,3")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_tensors_live_on_a_die(found: dict[str, Any]) -> None:
    """They go there and come back, whole or in part, on either stream, from the devices that are visible."""
    assert found["tensors"] == {
        "device": "npu:0",
        "back": [0, 1, 2, 3, 4],
        "slice": [1, 2],
        "copied": 12,
        "alignment": 0,
        "num_devices": 2,
    }


def test_what_a_tensor_takes_is_counted(found: dict[str, Any]) -> None:
    """By `torch.npu.mem_get_info`, from which blocks are counted; the allocator takes 2 MiB for itself."""
    assert found["taken"] == 66 << 20


def test_our_operators_take_them(found: dict[str, Any]) -> None:
    """Send, take, super kernel, reply, receive through PrivateUse1, with the kernels on the twin: as on the host."""
    assert found["difference"] < 1e-3


def test_operators_are_called_by_their_schemas(found: dict[str, Any]) -> None:
    """Those by which tests/ascend/test_operators.py calls them."""
    assert found["schemas"] == {name: f"npu::{name}{schema}" for name, schema in SCHEMAS.items()}


def test_operators_of_a_layer_equal_the_cpus(found: dict[str, Any]) -> None:
    """On tensors of a die, through the wheel, to a libopapi of the fake, in float32 and bfloat16."""
    assert found["unequal"] == {}


def test_atens_operators_equal_the_cpus(found: dict[str, Any]) -> None:
    """What else a layer needs, on strided and broadcast tensors, in float32 and bfloat16."""
    assert found["unequal_aten"] == {}


def test_every_operator_of_the_fake_has_run(found: dict[str, Any]) -> None:
    """So none is there that was not compared; one the wheel only asks for."""
    assert operators() - {*found["called"]} == {"GroupedMatmulV4"}


def test_an_operator_without_a_kernel_is_an_error(found: dict[str, Any]) -> None:
    """The wheel does not compute it on the host unseen."""
    assert found["without_kernel"].endswith("Error")


def test_what_the_fake_lacks_is_an_error(found: dict[str, Any]) -> None:
    """An operator of CANN's closed libraries fails; it does not return zeros."""
    assert found["refused"] == "RuntimeError"
