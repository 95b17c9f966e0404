"""`torch.ops.asap` on host tensors, on tensors of a die, and on none at all."""

# Shapes: S tokens, H hidden, R rows on a MoE device.

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from asap_ray import _native
from asap_ray.backends.ascend import ops
from asap_ray.models.experts import ExpertStage
from asap_ray.models.fused import array_of
from tests.ascend.twin import fake_runtime, kernels_folder
from tests.csrc.kinds import AscendKind, HostKind
from tests.csrc.world import PATIENCE_S, World

WIDTH, TOKENS = 12, 5
NAMES = [schema.partition("(")[0] for schema in ops.SCHEMAS]


def weights_of(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    """All experts on one device."""
    layout, generator = world.layout, torch.Generator().manual_seed(3)
    shape = layout.num_layers, layout.num_experts
    gate_up = torch.randn(*shape, 2 * WIDTH, layout.hidden, generator=generator)
    return gate_up, torch.randn(*shape, layout.hidden, WIDTH, generator=generator)


def one_layer(world: World, call: Callable[..., Any], comms: tuple[int, int, int], tensors: Any) -> torch.Tensor:
    """Send, take, compute, reply, receive, all by operators."""
    rank, device, experts = comms
    hidden, layout = world.layout.hidden, world.layout
    anchor = call("async_dispatch_send", *tensors, rank, 0, 2, PATIENCE_S)
    rows, counts, ticket = call(
        "async_dispatch_recv", anchor, device, hidden, layout.num_experts, torch.float32, PATIENCE_S
    )
    results = call("super_kernel", rows, counts, ticket, experts)
    assert ticket[:4].tolist() == [0, 0, 2, len(rows)]
    anchor = call("async_combine_send", results, ticket, device)
    out: torch.Tensor = call("async_combine_recv", anchor, rank, 0, TOKENS, hidden, torch.float32, PATIENCE_S)
    return out


def on_host() -> torch.Tensor:
    """One layer with CPU tensors over the host's endpoints."""
    world = World(kind=HostKind(), moe_devices=1)
    tokens = world.tokens(TOKENS)
    tensors = [torch.from_numpy(a) for a in (tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK)]
    comms = [ops.register(each) for each in (world.ranks[0][0], world.devices[0], ExpertStage(*weights_of(world)))]
    return one_layer(world, lambda name, *args: getattr(torch.ops.asap, name)(*args), tuple(comms), tensors)


def test_the_operators_are_one_layer() -> None:
    """Against the experts in a few lines."""
    world = World(moe_devices=1)
    tokens, (gate_up, down) = world.tokens(TOKENS), weights_of(world)
    x_SH, expected = torch.from_numpy(tokens.hidden_SH), torch.zeros(TOKENS, world.layout.hidden)
    for s, (ids, weights) in enumerate(zip(tokens.expert_ids_SK, tokens.weights_SK, strict=True)):
        for x, weight in zip(ids, weights, strict=True):
            gate, up = (gate_up[2, x] @ x_SH[s]).chunk(2)
            expected[s] += float(weight) * (down[2, x] @ (torch.nn.functional.silu(gate) * up))

    torch.testing.assert_close(on_host(), expected, rtol=1e-4, atol=1e-3)


def test_tensors_of_a_die_give_the_same(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PrivateUse1 kernels by hand, on tensors over the fake runtime's memory."""
    assert library
    die = _native.ascend.Die(str(fake_runtime()), str(kernels_folder()), 0)
    memory: list[Any] = []

    def new(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        memory.append(_native.ascend.SharedBuffer.create(die, max(count, 1) * dtype.itemsize))
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(memory[-1].address)
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)

    monkeypatch.setattr(ops, "settle", lambda _: None)
    monkeypatch.setattr(ops, "_anchor", lambda _: torch.empty(1, dtype=torch.int8))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda _, shape, dtype: new(shape, dtype))
    monkeypatch.setattr(torch, "empty_like", lambda like: new(like.shape, like.dtype))
    world = World(kind=AscendKind(fake_runtime(), kernels_folder()), moe_devices=1)
    tokens, (gate_up, down) = world.tokens(TOKENS), weights_of(world)
    tensors = []
    for array in (tokens.hidden_SH, tokens.expert_ids_SK, tokens.weights_SK):
        tensors.append(new(array.shape, torch.from_numpy(array).dtype))
        np.copyto(tensors[-1].numpy(), array)
    kernel = _native.ascend.SuperKernel(die, world.native_layout, 0, "float32", array_of(gate_up), array_of(down))
    natives = world.ranks[0][0], world.devices[0], kernel
    comms = tuple(ops.register(ops.DieEndpoint(native, die)) for native in natives)
    kernels = dict(zip(NAMES, ops.KERNELS["PrivateUse1"], strict=True))

    out_SH = one_layer(world, lambda name, *args: kernels[name](*args), comms, tensors)
    monkeypatch.undo()

    torch.testing.assert_close(out_SH.clone(), on_host(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["CPU", "PrivateUse1", "Meta"])
def test_every_operator_has_every_kernel(name: str, key: str) -> None:
    """So that a model with these operators can be traced, run on a host and run on a die."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"asap::{name}", key)


def test_shapes_are_known_without_data() -> None:
    """Tracing: how many rows arrive is a symbol, everything else is a number."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        anchor = torch.empty(1, dtype=torch.int8)
        rows, counts, ticket = torch.ops.asap.async_dispatch_recv(anchor, 1, 20, 7, torch.bfloat16, 1.0)
        out = torch.ops.asap.async_combine_recv(anchor, 1, 0, 9, 20, torch.bfloat16, 1.0)

    assert not isinstance(rows.shape[0], int)
    assert (rows.shape[1], rows.dtype, counts.shape, ticket.shape) == (20, torch.bfloat16, (7,), (5,))
    assert (out.shape, out.dtype) == ((9, 20), torch.bfloat16)
