"""The functions of a layer on a die: the seam of `asap_ray/models/kernels.py` over torch-npu's operators."""

# Shapes: S tokens, C columns of all heads, N heads, D head_dim, F = D / 2.

from __future__ import annotations

import torch

from asap_ray.backends.ascend import operators
from asap_ray.models.rope import Angles


class DieKernels:
    """See `Kernels`."""

    rms_norm = staticmethod(operators.rms_norm)
    swiglu = staticmethod(operators.swiglu)
    rotate_ = staticmethod(operators.rotate_)
    rotate_pairs_ = staticmethod(operators.rotate_pairs_)
    attend = staticmethod(operators.attend)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def norm_and_rotate_(
        self,
        qkv_SC: torch.Tensor,
        norms_D: tuple[torch.Tensor, torch.Tensor],
        angles_SF: Angles,
        num_heads: tuple[int, int],
        eps: float,
    ) -> None:
        """See `Kernels`: three operators for queries, and for keys."""
        start, head_dim = 0, len(norms_D[0])
        for norm_D, number in zip(norms_D, num_heads, strict=True):
            stop = start + number * head_dim
            heads_SND = qkv_SC[:, start:stop].view(len(qkv_SC), number, head_dim)
            normed_SND = operators.rms_norm(heads_SND.float(), norm_D, eps)
            operators.rotate_(normed_SND, angles_SF)
            heads_SND.copy_(normed_SND)
            start = stop
