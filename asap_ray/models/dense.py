"""The SwiGLU MLP every token goes through: of a dense layer, or a MoE layer's shared experts; split over the ranks."""

# Shapes: S tokens, H hidden, I this rank's part of the intermediate size, J = 2 I.

from __future__ import annotations

import torch

from asap_ray.models.fused import swiglu
from asap_ray.models.weights import Shard


class DenseMLP:
    """Weights of one layer on rank j; `name` is their place in the checkpoint, `width` the intermediate size."""

    def __init__(self, shard: Shard, name: str, hidden: int, width: int) -> None:
        gate_up = (shard.column_parallel(f"{name}.{half}_proj.weight", (width, hidden)) for half in ("gate", "up"))
        self._gate_up_HJ = torch.cat(tuple(gate_up), dim=1)
        self._down_IH = shard.row_parallel(f"{name}.down_proj.weight", (hidden, width))

    def workspace(self, num_tokens: int) -> int:
        """Numbers it makes on the way of so many tokens: gate, up and their product."""
        return num_tokens * (self._gate_up_HJ.shape[1] + len(self._down_IH))

    def __call__(self, hidden_SH: torch.Tensor) -> torch.Tensor:
        """This rank's part of the output sum, [S, H]."""
        return swiglu(hidden_SH @ self._gate_up_HJ) @ self._down_IH
