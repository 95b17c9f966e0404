"""The dense SwiGLU MLP of layers that are not MoE, split over the ranks of a group."""

# Shapes: S tokens, H hidden, I this rank's part of the intermediate size.

from __future__ import annotations

import torch
from torch.nn import functional

from asap_ray.models.config import QwenConfig
from asap_ray.models.weights import Shard


class DenseMLP:
    """Weights of one layer on rank j."""

    def __init__(self, shard: Shard, config: QwenConfig, layer_idx: int) -> None:
        prefix, hidden, width = f"model.layers.{layer_idx}.mlp", config.hidden, config.dense_intermediate
        self._gate_HI = shard.column_parallel(f"{prefix}.gate_proj.weight", (width, hidden))
        self._up_HI = shard.column_parallel(f"{prefix}.up_proj.weight", (width, hidden))
        self._down_IH = shard.row_parallel(f"{prefix}.down_proj.weight", (hidden, width))

    def __call__(self, hidden_SH: torch.Tensor) -> torch.Tensor:
        """This rank's part of the output sum, [S, H]."""
        return (functional.silu(hidden_SH @ self._gate_HI) * (hidden_SH @ self._up_HI)) @ self._down_IH
