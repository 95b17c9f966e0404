"""Weights of one matrix product, laid out once for the kernel that computes it.

Float32 on CPUs goes through native code, whose matrices lie in panels; other types and devices go through torch.
"""

# Shapes: S rows, A inputs, B outputs, P panels of C = 32 columns, H hidden, I intermediate,
#         R rows grouped by expert, E experts.

from __future__ import annotations

from typing import Final

import torch

from asap_ray import _native

PANEL: Final = 32
HALF: Final = PANEL // 2


class Matrix:
    """The product of rows with a matrix [A, B]."""

    def __init__(self, weight_AB: torch.Tensor) -> None:
        """Copies the weights."""
        self.num_outputs = weight_AB.shape[1]
        in_panels = lies_in_panels(weight_AB)
        self._weight = panels_of(weight_AB) if in_panels else weight_AB.clone(memory_format=torch.contiguous_format)

    def __call__(self, x_SA: torch.Tensor) -> torch.Tensor:
        """[S, B], for rows of the weights' type."""
        if self._weight.ndim == 2:
            return x_SA @ self._weight
        out_SB = x_SA.new_empty(len(x_SA), self.num_outputs)
        _native.multiply(out_SB.numpy(), x_SA.contiguous().numpy(), self._weight.numpy(), torch.get_num_threads())
        return out_SB


def lies_in_panels(weight_AB: torch.Tensor) -> bool:
    """Whether native code computes with a matrix."""
    return weight_AB.dtype is torch.float32 and weight_AB.is_cpu


def panels_of(weight_AB: torch.Tensor) -> torch.Tensor:
    """A float32 matrix in panels [P, A, C], zeros beyond its last column."""
    num_inputs, num_outputs = weight_AB.shape
    panels_PAC = weight_AB.new_zeros(-(-num_outputs // PANEL), num_inputs, PANEL)
    fill(panels_PAC, weight_AB)
    return panels_PAC


def panels_for(hidden: int, width: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The shapes of a SwiGLU MLP's gate and up, and of its down, in panels."""
    return (-(-width // HALF), hidden, PANEL), (-(-hidden // PANEL), width, PANEL)


def fill_gate_up(panels_PHC: torch.Tensor, gate_HI: torch.Tensor, up_HI: torch.Tensor) -> None:
    """Sixteen columns of the gate, beside them those of up that they meet; the panels are zeros before."""
    fill(panels_PHC[..., :HALF], gate_HI)
    fill(panels_PHC[..., HALF:], up_HI)


def fill(panels_PAC: torch.Tensor, weight_AB: torch.Tensor) -> None:
    """A matrix, its columns in order; the panels are zeros before."""
    width = panels_PAC.shape[2]
    num_whole = weight_AB.shape[1] // width
    whole_AB, rest_AB = weight_AB[:, : num_whole * width], weight_AB[:, num_whole * width :]
    panels_PAC[:num_whole].copy_(whole_AB.view(len(weight_AB), num_whole, width).transpose(0, 1))
    if rest_AB.numel():
        panels_PAC[num_whole, :, : rest_AB.shape[1]] = rest_AB


def multiply_swiglu(
    x_RH: torch.Tensor, num_rows_E: torch.Tensor, gate_up_EPHC: torch.Tensor, down_EPIC: torch.Tensor
) -> torch.Tensor:
    """(silu(x gate) * (x up)) down of each expert's consecutive rows, [R, H]; float32, panels."""
    out_RH = torch.empty_like(x_RH)
    tables = gate_up_EPHC.numpy(), down_EPIC.numpy()
    _native.multiply_swiglu(out_RH.numpy(), x_RH.numpy(), num_rows_E.numpy(), *tables, torch.get_num_threads())
    return out_RH
