"""Each operator of torch-npu that a layer may use beside the CPU's function it stands for, with tensors for both."""

# Shapes: see asap_ray/backends/ascend/operators.py.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from asap_ray.backends.ascend import operators
from asap_ray.models import fused, gqa, rope
from asap_ray.models.experts import ExpertStage

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Both take the same tensors; those of `floats` first, in `dtype`."""

    ours: Function
    reference: Function
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    others: tuple[torch.Tensor, ...] = ()

    def tensors(self) -> list[torch.Tensor]:
        """The same numbers each time."""
        generator = torch.Generator().manual_seed(5)
        floats = [torch.randn(*shape, generator=generator).to(self.dtype) for shape in self.shapes]
        return [*floats, *self.others]

    def is_met(self, ours: torch.Tensor) -> None:
        """Whether it equals the reference in shape and type and, up to rounding of the type, in value."""
        expected = self.reference(*self.tensors())
        tolerance = TOLERANCE[expected.dtype]
        largest = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(ours.cpu(), expected, rtol=tolerance, atol=tolerance * largest)


def _rotated(rotate: Callable[..., None], heads_SND: torch.Tensor, *angles_SF: torch.Tensor) -> torch.Tensor:
    rotate(heads_SND, angles_SF)
    return heads_SND


def _experts(
    rows_RH: torch.Tensor, gate_up_EHJ: torch.Tensor, down_EIH: torch.Tensor, num_rows_E: torch.Tensor
) -> torch.Tensor:
    return operators.grouped_experts(rows_RH, num_rows_E, gate_up_EHJ, down_EIH)


def _stage(
    rows_RH: torch.Tensor, gate_up_EHJ: torch.Tensor, down_EIH: torch.Tensor, num_rows_E: torch.Tensor
) -> torch.Tensor:
    result: torch.Tensor = asyncio.run(
        ExpertStage(gate_up_EHJ.mT[None], down_EIH.mT[None]).super_kernel(0, rows_RH, num_rows_E)
    )
    return result


def _padded(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
    missing = key_GmD.shape[-1] - value_GmV.shape[-1]
    value_GmD = torch.nn.functional.pad(value_GmV, (0, missing))
    return gqa.attend(query_nND, key_GmD, value_GmD)[..., : value_GmV.shape[-1]]


def _of_both_types(dtype: torch.dtype) -> dict[str, Case]:
    """The cases of one type."""
    norm: dict[str, Any] = {"eps": 1e-6, "dtype": dtype}
    angles = {dim: rope.Rope(dim=dim, theta=10000.0).angles_at(torch.arange(5) + 3) for dim in (16, 8)}
    found = {
        "rms_norm": Case(
            partial(operators.rms_norm, **norm), partial(fused.rms_norm, **norm), ((5, 48), (48,)), torch.float32
        ),
        "swiglu": Case(operators.swiglu, fused.swiglu, ((7, 24),), dtype),
        "grouped_experts": Case(
            _experts, _stage, ((7, 20), (3, 20, 24), (3, 12, 20)), dtype, (torch.tensor([4, 0, 3]),)
        ),
    }
    for dim, each in angles.items():  # whole heads, or the first part of each
        ours, reference = partial(_rotated, operators.rotate_), partial(_rotated, rope.rotate_)
        found[f"rotate_{dim}"] = Case(ours, reference, ((5, 3, 16),), dtype, each)
    pairs = partial(_rotated, operators.rotate_pairs_), partial(_rotated, rope.rotate_pairs_)
    found["rotate_pairs"] = Case(*pairs, ((5, 3, 16),), dtype, angles[16])
    for new, keys in ((1, 1), (1, 9), (6, 6), (4, 9)):  # a decode step, a whole prompt, a chunk behind a prefix
        shapes = (new, 4, 16), (2, keys, 16), (2, keys, 16)
        found[f"attend_{new}_of_{keys}"] = Case(operators.attend, gqa.attend, shapes, dtype)
    return found


CASES = {
    **{f"{name}-float32": case for name, case in _of_both_types(torch.float32).items()},
    **{f"{name}-bfloat16": case for name, case in _of_both_types(torch.bfloat16).items()},
    "narrow_values-float32": Case(operators.attend, _padded, ((4, 2, 16), (2, 9, 16), (2, 9, 10)), torch.float32),
}
