"""What a layer needs of aten beside torch-npu's own operators: expressions that a die and a CPU have to agree on.

Operands are strided or broadcast wherever an operator lets them be.
"""

# Shapes: S = 4 rows, H = 5 columns, K = 6 between two matrices, B = 2 batches.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

TOLERANCE: Final = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Results = torch.Tensor | tuple[torch.Tensor, ...]


class Operands:
    """The same numbers on any device each time; none is packed, but for indices."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(11)

        def floats(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype).to(device)

        def ints(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator).to(device)

        self.device, self.dtype = device, dtype
        self.x_SH, self.y_SH = floats(4, 10)[:, ::2], floats(5, 4).T
        self.row_H, self.column_S1 = floats(10)[1::2], floats(4, 2)[:, 1:]
        self.positive_SH = torch.rand(5, 4, generator=generator).add(0.5).to(dtype).to(device).T
        self.distinct_SH = torch.randperm(40, generator=generator).view(4, 10).to(dtype).to(device)[:, ::2]
        self.left_SK, self.right_KH = floats(4, 12)[:, ::2], floats(5, 6).T
        self.left_BSK, self.right_BKH = floats(4, 2, 6).transpose(0, 1), floats(2, 5, 6).mT
        self.ints_SH, self.divisors_SH = ints(-9, 9, 4, 10)[:, ::2], ints(1, 5, 5, 4).T
        self.mask_SH, self.flags_SH = ints(0, 2, 4, 10).bool()[:, ::2], ints(0, 2, 5, 4).bool().T
        self.ids_K, self.columns_SK = ints(0, 4, 6), ints(0, 5, 4, 6)
        self.rows_K = torch.tensor([3, 0, 2], device=device)
        self.times_S = torch.tensor([1, 0, 3, 2], device=device)


Expression = Callable[[Operands], Results]


def _binary(name: str, scalar: float, *, in_place: bool = True) -> dict[str, Expression]:
    """With a tensor, with a number, and both in place; divisors are not near zero."""
    found: dict[str, Expression] = {
        name: lambda o: getattr(torch, name)(o.x_SH, o.positive_SH),
        f"{name} row": lambda o: getattr(torch, name)(o.x_SH, o.row_H.abs() + 1),
        f"{name} number": lambda o: getattr(torch, name)(o.x_SH, scalar),
    }
    if in_place:
        found[f"{name}_"] = lambda o: getattr(o.x_SH, f"{name}_")(o.column_S1.abs() + 1)
        found[f"{name}_ number"] = lambda o: getattr(o.x_SH, f"{name}_")(scalar)
    return found


def _unary(name: str, *, in_place: bool) -> dict[str, Expression]:
    found: dict[str, Expression] = {name: lambda o: getattr(torch, name)(o.positive_SH)}
    if in_place:
        found[f"{name}_"] = lambda o: getattr(o.positive_SH, f"{name}_")()
    return found


def _elementwise() -> dict[str, Expression]:
    found: dict[str, Expression] = {}
    for name in ("neg", "abs"):
        found |= _unary(name, in_place=False)
    for name in ("rsqrt", "sqrt", "reciprocal", "exp", "log", "sigmoid", "relu", "cos", "sin", "logical_not"):
        found |= _unary(name, in_place=True)
    for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "floor_divide", "remainder"):
        found |= _binary(name, 0.75)
    for name in ("bitwise_and", "bitwise_or"):
        found[name] = lambda o, name=name: getattr(torch, name)(o.ints_SH, o.divisors_SH)
        found[f"{name} number"] = lambda o, name=name: getattr(torch, name)(o.ints_SH, 6)
        found[f"{name}_"] = lambda o, name=name: getattr(o.ints_SH, f"{name}_")(o.divisors_SH)
        found[f"{name}_ number"] = lambda o, name=name: getattr(o.ints_SH, f"{name}_")(6)
        found[f"{name} bool"] = lambda o, name=name: getattr(torch, name)(o.mask_SH, o.flags_SH)
    for name in ("logical_and", "logical_or"):
        found[name] = lambda o, name=name: getattr(torch, name)(o.mask_SH, o.flags_SH)
        found[f"{name}_"] = lambda o, name=name: getattr(o.mask_SH, f"{name}_")(o.flags_SH)
    return found | {
        "silu": lambda o: functional.silu(o.x_SH),
        "bitwise_not": lambda o: ~o.ints_SH,
        "bitwise_not bool": lambda o: ~o.mask_SH,
        "add alpha": lambda o: torch.add(o.x_SH, o.y_SH, alpha=-2),
        "add mixed_": lambda o: o.x_SH.float().add_(o.y_SH),
        "sub from number": lambda o: 1 - o.x_SH,
        "add ints": lambda o: o.ints_SH + o.divisors_SH,
        "pow": lambda o: o.positive_SH.pow(o.row_H),
        "pow number": lambda o: o.x_SH.pow(2),
        "pow_": lambda o: o.positive_SH.pow_(o.y_SH),
        "pow_ number": lambda o: o.positive_SH.pow_(0.5),
        "pow of number": lambda o: torch.pow(2, o.x_SH),
        "div floor": lambda o: torch.div(o.ints_SH, o.divisors_SH, rounding_mode="floor"),
        "div trunc number": lambda o: torch.div(o.ints_SH, 4, rounding_mode="trunc"),
        "div ints": lambda o: o.ints_SH / o.divisors_SH,
        "maximum": lambda o: torch.maximum(o.x_SH, o.row_H),
        "minimum": lambda o: torch.minimum(o.x_SH, o.row_H),
        "clamp": lambda o: o.x_SH.clamp(-0.5, 0.5),
        "clamp_min": lambda o: o.x_SH.clamp_min(0.25),
        "where": lambda o: torch.where(o.mask_SH, o.x_SH, o.row_H),
        "masked_fill": lambda o: o.x_SH.masked_fill(o.mask_SH, -torch.inf),
        "masked_fill_ tensor": lambda o: o.x_SH.masked_fill_(o.mask_SH, o.row_H[0]),
    }


def _copies() -> dict[str, Expression]:
    def put(o: Operands) -> torch.Tensor:
        whole = torch.zeros(4, 11, dtype=torch.float32, device=o.device)
        whole[:, 1::2] = o.x_SH
        whole[:, ::2].copy_(o.column_S1.expand(4, 6))
        return whole

    return {
        "contiguous": lambda o: o.y_SH.contiguous(),
        "expand": lambda o: o.row_H.expand(4, 5).contiguous(),
        "to slices": put,
        "float": lambda o: o.x_SH.float(),
        "bfloat16": lambda o: o.x_SH.float().bfloat16(),
        "half": lambda o: o.x_SH.half(),
        "int": lambda o: o.ints_SH.int(),
        "uint8": lambda o: o.divisors_SH.to(torch.uint8),
        "bool": lambda o: o.ints_SH.bool(),
        "from ints": lambda o: o.ints_SH.to(o.dtype),
        "cat last": lambda o: torch.cat((o.x_SH, o.column_S1, o.y_SH), -1),
        "cat first": lambda o: torch.cat((o.x_SH, o.row_H[None])),
        "cat middle": lambda o: torch.cat((o.left_BSK, o.left_BSK[:, :1]), 1),
        "stack": lambda o: torch.stack((o.x_SH, o.y_SH), 1),
        "triu": lambda o: o.x_SH.triu(1),
        "tril": lambda o: o.x_SH.tril(-1),
        "triu_": lambda o: o.x_SH.triu_(1),
        "tril_": lambda o: o.x_SH.tril_(),
        "pad": lambda o: functional.pad(o.x_SH, (1, 3)),
        "pad rows": lambda o: functional.pad(o.x_SH, (0, 0, 2, 1), value=2.0),
        "zero_": lambda o: o.x_SH.zero_(),
        "fill_": lambda o: o.x_SH.fill_(1.5),
        "fill_ tensor": lambda o: o.x_SH.fill_(o.row_H[2]),
        "zeros": lambda o: torch.zeros(2, 3, dtype=o.dtype, device=o.device),
        "new_zeros": lambda o: o.x_SH.new_zeros(3),
        "zeros_like": lambda o: torch.zeros_like(o.x_SH),
        "ones": lambda o: torch.ones(2, 3, dtype=o.dtype, device=o.device),
        "ones_like": lambda o: torch.ones_like(o.x_SH, dtype=torch.bool),
        "full": lambda o: torch.full((2, 3), -2.5, dtype=o.dtype, device=o.device),
        "arange": lambda o: torch.arange(2, 11, 3, device=o.device),
        "arange floats": lambda o: torch.arange(4, dtype=o.dtype, device=o.device),
        "item": lambda o: torch.tensor(o.x_SH[1, 2].item()),
    }


def _along_axes() -> dict[str, Expression]:
    return {
        "sum": lambda o: o.x_SH.sum(),
        "sum first": lambda o: o.x_SH.sum(0),
        "sum kept": lambda o: o.x_SH.sum(-1, keepdim=True),
        "sum two": lambda o: o.left_BSK.sum((0, 2)),
        "sum ints": lambda o: o.ints_SH.sum(1),
        "mean": lambda o: o.x_SH.mean(-1, keepdim=True),
        "mean all": lambda o: o.x_SH.mean(),
        "all": lambda o: o.mask_SH.all(),
        "all axis": lambda o: o.mask_SH.all(1),
        "any": lambda o: o.mask_SH.any(),
        "any axis": lambda o: o.mask_SH.any(0),
        "max": lambda o: o.x_SH.max(),
        "min": lambda o: o.x_SH.min(),
        "amax": lambda o: o.x_SH.amax(0),
        "max axis": lambda o: tuple(o.distinct_SH.max(0)),
        "min axis": lambda o: tuple(o.distinct_SH.min(1, keepdim=True)),
        "argmax": lambda o: o.distinct_SH.argmax(-1),
        "argmax all": lambda o: o.distinct_SH.argmax(),
        "argmin": lambda o: o.distinct_SH.argmin(0),
        "topk": lambda o: tuple(o.distinct_SH.topk(3, dim=-1)),
        "topk smallest": lambda o: tuple(o.distinct_SH.topk(2, dim=0, largest=False)),
        "sort": lambda o: tuple(o.distinct_SH.sort(-1)),
        "sort descending": lambda o: tuple(o.distinct_SH.sort(0, descending=True)),
        "argsort stable": lambda o: o.divisors_SH.argsort(stable=True),
        "softmax": lambda o: o.x_SH.softmax(-1),
        "softmax first": lambda o: o.x_SH.softmax(0),
        "softmax float": lambda o: o.x_SH.softmax(-1, dtype=torch.float32),
        "cumsum": lambda o: o.x_SH.cumsum(0),
        "cumsum ints": lambda o: o.ints_SH.cumsum(-1),
        "layer_norm": lambda o: functional.layer_norm(o.x_SH, (5,), o.row_H.contiguous(), o.row_H.neg(), 1e-5),
    }


def _indexing() -> dict[str, Expression]:
    def index_put(o: Operands) -> torch.Tensor:
        o.x_SH[o.rows_K, o.rows_K + 1] = o.row_H[:3]
        o.x_SH[:, o.rows_K] = o.column_S1
        o.x_SH[o.rows_K] += 1
        return o.x_SH

    def index_copy(o: Operands) -> torch.Tensor:
        pages = torch.zeros(3, 4, 5, dtype=o.dtype, device=o.device)
        pages[1].index_copy_(0, o.rows_K, o.y_SH[:3])
        return pages

    def masked_put(o: Operands) -> torch.Tensor:
        o.x_SH[o.mask_SH] = 0
        return o.x_SH

    return {
        "gather": lambda o: o.x_SH.gather(1, o.columns_SK),
        "gather first": lambda o: o.x_SH.gather(0, o.ids_K[:5].expand(2, 5)),
        "scatter": lambda o: o.x_SH.scatter(1, o.columns_SK[:, :1], o.y_SH),
        "scatter_": lambda o: o.x_SH.scatter_(1, o.columns_SK[:, :1], o.y_SH),
        "scatter value": lambda o: o.x_SH.scatter(1, o.columns_SK, 2.5),
        "scatter_ value": lambda o: o.mask_SH.scatter_(1, o.columns_SK[:, :2], value=False),
        "scatter_add": lambda o: o.x_SH.scatter_add(1, o.columns_SK[:, :5], o.y_SH),
        "index_select": lambda o: o.x_SH.index_select(0, o.ids_K),
        "index_select columns": lambda o: o.x_SH.index_select(1, o.rows_K),
        "embedding": lambda o: functional.embedding(o.columns_SK.int(), o.right_KH),
        "index_copy_": index_copy,
        "index_add_": lambda o: o.x_SH.index_add_(0, o.rows_K, o.y_SH[:3], alpha=2),
        "index rows": lambda o: o.x_SH[o.ids_K],
        "index behind": lambda o: o.left_BSK[:, o.rows_K],
        "index two": lambda o: o.x_SH[o.rows_K, o.rows_K + 1],
        "index apart": lambda o: o.left_BSK[o.ids_K % 2, :, o.ids_K],
        "index broadcast": lambda o: o.x_SH[o.rows_K[:, None], o.rows_K],
        "index put": index_put,
        "index put mask": masked_put,
        "nonzero": lambda o: o.mask_SH.nonzero(),
        "masked_select": lambda o: o.x_SH.masked_select(o.mask_SH),
        "repeat_interleave": lambda o: o.x_SH.repeat_interleave(2, dim=0),
        "repeat_interleave each": lambda o: o.x_SH.repeat_interleave(o.times_S, dim=0),
        "repeat_interleave flat": lambda o: o.x_SH.repeat_interleave(3),
        "repeat_interleave flat each": lambda o: o.row_H[:4].repeat_interleave(o.times_S),
        "repeat_interleave indices": lambda o: torch.repeat_interleave(o.times_S),
    }


def _products() -> dict[str, Expression]:
    return {
        "mm": lambda o: o.left_SK.mm(o.right_KH),
        "matmul": lambda o: o.left_SK @ o.right_KH,
        "matmul of columns": lambda o: o.left_SK @ o.right_KH[:, 1:3],
        "mv": lambda o: o.left_SK.mv(o.left_SK[0]),
        "matmul vector": lambda o: o.left_SK @ o.left_SK[0],
        "bmm": lambda o: o.left_BSK.bmm(o.right_BKH),
        "matmul broadcast": lambda o: o.left_BSK @ o.right_KH,
        "matmul of batches": lambda o: o.left_BSK[:, None] @ o.right_BKH,
        "linear": lambda o: functional.linear(o.left_SK, o.right_KH.T),
        "linear bias": lambda o: functional.linear(o.left_SK, o.right_KH.T, o.row_H),
        "addmm": lambda o: torch.addmm(o.row_H, o.left_SK, o.right_KH, beta=0.5, alpha=2),
        "addmm_": lambda o: o.x_SH.addmm_(o.left_SK, o.right_KH),
        "baddbmm": lambda o: torch.baddbmm(o.x_SH[None].expand(2, 4, 5), o.left_BSK, o.right_BKH),
    }


EXPRESSIONS: Final = _elementwise() | _copies() | _along_axes() | _indexing() | _products()


def compare(name: str, dtype: torch.dtype) -> None:
    """Fails where a die's results are not the CPU's in type, shape and, up to rounding of the type, value."""
    expression = EXPRESSIONS[name]
    ours, expected = _each(expression(Operands("npu", dtype))), _each(expression(Operands("cpu", dtype)))
    tolerance = TOLERANCE[dtype]
    for one, other in zip(ours, expected, strict=True):
        is_exact = not other.is_floating_point()
        limits: dict[str, Any] = {"rtol": 0, "atol": 0} if is_exact else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(one.cpu(), other, **limits)


def _each(results: Results) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
