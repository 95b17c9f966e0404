"""The dense SwiGLU MLP of layers that are not MoE, split over the ranks of a group."""

# Shapes: S tokens, H hidden, I this rank's part of the intermediate size, J = 2 I.

from __future__ import annotations

import torch

from asap_ray.models.config import QwenConfig
from asap_ray.models.fused import swiglu
from asap_ray.models.weights import Shard


class DenseMLP:
    """Weights of one layer on rank j."""

    def __init__(self, shard: Shard, config: QwenConfig, layer_idx: int) -> None:
        prefix, hidden, width = f"model.layers.{layer_idx}.mlp", config.hidden, config.dense_intermediate
        gate_up = (shard.column_parallel(f"{prefix}.{name}_proj.weight", (width, hidden)) for name in ("gate", "up"))
        self._gate_up_HJ = torch.cat(tuple(gate_up), dim=1)
        self._down_IH = shard.row_parallel(f"{prefix}.down_proj.weight", (hidden, width))

    def __call__(self, hidden_SH: torch.Tensor) -> torch.Tensor:
        """This rank's part of the output sum, [S, H]."""
        return swiglu(hidden_SH @ self._gate_up_HJ) @ self._down_IH
