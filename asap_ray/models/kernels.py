"""What a layer computes beyond plain torch, for tensors of one kind of device: the seam between models and devices.

Models hold what a backend gives them and ask no tensor where it lies. On CPUs it is native code (`host_kernels`).
"""

# Shapes: S tokens, H hidden, R rows, I intermediate, J = 2 I, C columns of all heads, D head_dim, F = rotated dims / 2,
#         n tokens of one request, m of it so far, N query heads, G heads of keys and values, V value dimensions.

from __future__ import annotations

from typing import Protocol

import torch

from asap_ray.models.rope import Angles


class Kernels(Protocol):
    """One device's functions; all tensors are its own."""

    @property
    def device(self) -> torch.device:
        """Where weights, hidden states, keys and values live."""

    def rms_norm(
        self, x_SH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype = torch.float32, /
    ) -> torch.Tensor:
        """Scale rows of float32 to unit root mean square, then by `weight`, in float32; [S, H] of type `dtype`."""

    def swiglu(self, gate_up_RJ: torch.Tensor, /) -> torch.Tensor:
        """silu(gate) * up of the two halves, [R, I]."""

    def norm_and_rotate_(
        self,
        qkv_SC: torch.Tensor,
        norms_D: tuple[torch.Tensor, torch.Tensor],
        angles_SF: Angles,
        num_heads: tuple[int, int],
        eps: float,
        /,
    ) -> None:
        """RMS norm of each query and key head, then rotary embedding, in place; see `fused.norm_and_rotate_`."""

    def rotate_(self, heads_SND: torch.Tensor, angles_SF: Angles, /) -> None:
        """Turn the first 2F dimensions of each head in place; pairs are (f, f + F)."""

    def rotate_pairs_(self, heads_SND: torch.Tensor, angles_SF: Angles, /) -> None:
        """Turn all 2F dimensions of each head in place; pairs are (2f, 2f + 1)."""

    def attend(self, query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor, /) -> torch.Tensor:
        """Softmax attention of the last n of m tokens, [n, N, V], V at most D: each sees all before it, and itself."""
