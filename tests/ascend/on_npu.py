"""What a process with torch-npu does on a die: `python -m tests.ascend.on_npu LIBRARY KERNELS`, JSON to ASAP_FOUND."""

# Shapes: S tokens, H hidden.

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch_npu

from asap_ray import _native
from asap_ray.backends.ascend import ops
from asap_ray.backends.ascend.die_place import DiePlace
from asap_ray.models.fused import array_of
from tests.ascend import aten_cases
from tests.ascend.documented import SCHEMAS
from tests.ascend.operator_cases import CASES
from tests.ascend.test_ops import TOKENS, on_host, one_layer, weights_of
from tests.csrc.kinds import AscendKind
from tests.csrc.world import World


def tensors() -> dict[str, Any]:
    """Memory of a die, there and back, beside a second stream and an event."""
    x_S = torch.arange(5.0)
    there_S = x_S.to("npu:0")
    stream, event = torch.npu.Stream(), torch.npu.Event()
    with torch.npu.stream(stream):
        empty_SH = torch.empty(4, 3, device="npu")
        event.record()
    event.synchronize()
    empty_SH.copy_(torch.ones(4, 3))
    torch.npu.current_stream().synchronize()
    return {
        "device": str(there_S.device),
        "back": there_S.cpu().tolist(),
        "slice": there_S[1:3].cpu().tolist(),
        "copied": empty_SH.cpu().sum().item(),
        "alignment": empty_SH.data_ptr() % 512,
        "num_devices": torch.npu.device_count(),
    }


def taken() -> int:
    """By how many bytes less a die has, as the backend counts, once there is a tensor of 64 MiB."""
    place = DiePlace(torch.device("npu:0"))
    before = place.used_bytes()
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="npu")
    num_bytes = place.used_bytes() - before
    del kept
    return num_bytes


def difference(library: Path, kernels: Path) -> float:
    """One layer by `torch.ops.asap` on tensors of a die, against the same on the host: the largest of all numbers."""
    die = _native.ascend.Die(str(library), str(kernels), 0)
    world = World(kind=AscendKind(library, kernels), moe_devices=1)
    tokens, (gate_up, down) = world.tokens(TOKENS), weights_of(world)
    arrays = tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK
    kernel = _native.ascend.SuperKernel(die, world.native_layout, 0, "float32", array_of(gate_up), array_of(down))
    natives = world.ranks[0][0], world.devices[0], kernel
    comms = tuple(ops.register(ops.DieEndpoint(native, die)) for native in natives)

    def call(name: str, *args: Any) -> Any:
        return getattr(torch.ops.asap, name)(*args)

    out_SH = one_layer(world, call, comms, [torch.from_numpy(array).to("npu") for array in arrays])
    assert out_SH.device.type == "npu"
    return float((out_SH.cpu() - on_host()).abs().max())


def schemas() -> dict[str, str]:
    """Of the operators that a layer may use, as the wheel registers them."""
    return {name: str(getattr(torch.ops.npu, name).default._schema) for name in SCHEMAS}


def unequal() -> dict[str, str]:
    """Operators that, on tensors of a die, do not give what the CPU's function gives, and why."""
    reasons = {}
    for name, case in CASES.items():
        try:
            case.is_met(case.ours(*(tensor.to("npu") for tensor in case.tensors())))
        except (AssertionError, RuntimeError) as error:
            reasons[name] = str(error)
    return reasons


def unequal_aten() -> dict[str, str]:
    """Expressions of aten that, on tensors of a die, do not give what they give on the CPU, and why."""
    reasons = {}
    for dtype, name in itertools.product(aten_cases.TOLERANCE, aten_cases.EXPRESSIONS):
        try:
            aten_cases.compare(name, dtype)
        except (AssertionError, RuntimeError) as error:
            reasons[f"{name} {dtype}"] = str(error)
    return reasons


def called() -> list[str]:
    """The operators of the fake that have run in this process."""
    library = ctypes.CDLL("libopapi.so")
    library.asap_fake_called.restype = ctypes.c_char_p
    names: bytes = library.asap_fake_called()
    return names.decode().split()


def without_kernel() -> str:
    """What an operator says that the wheel has no kernel of a die for."""
    try:
        return str(torch.ones(3).to("npu").lgamma().cpu())
    except RuntimeError as error:
        return type(error).__name__


def refused() -> str:
    """What an operator says that neither the fake nor we have; the last thing, since it ends the queue."""
    try:
        return str(torch.ones(3).to("npu").erfinv().cpu())
    except RuntimeError as error:
        return type(error).__name__


if __name__ == "__main__":
    torch_npu.npu.set_device(0)
    found = {
        "tensors": tensors(),
        "taken": taken(),
        "schemas": schemas(),
        "unequal": unequal(),
        "unequal_aten": unequal_aten(),
        "called": called(),
        "difference": difference(*map(Path, sys.argv[1:])),
        "without_kernel": without_kernel(),
        "refused": refused(),
    }
    Path(os.environ["ASAP_FOUND"]).write_text(json.dumps(found))
