"""The routed experts of one MoE device: all layers in one table, the layer a number that comes with rows (3.4.2)."""

# Shapes: L MoE layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate.

from __future__ import annotations

import torch
from torch.nn import functional

from asap_ray.models.config import QwenConfig
from asap_ray.models.weights import Checkpoint


class ExpertStage:
    """`MoEStage` of Qwen3-MoE: SwiGLU experts, both projections of all layers resident."""

    def __init__(self, checkpoint: Checkpoint, config: QwenConfig, experts: range, dtype: torch.dtype) -> None:
        num_layers, hidden, width = len(config.moe_layers), config.hidden, config.moe_intermediate
        self._gate_up_LEHI = torch.empty(num_layers, len(experts), hidden, 2 * width, dtype=dtype)
        self._down_LEIH = torch.empty(num_layers, len(experts), width, hidden, dtype=dtype)
        for layer, layer_idx in enumerate(config.moe_layers):
            for local, expert in enumerate(experts):
                prefix = f"model.layers.{layer_idx}.mlp.experts.{expert}"
                gate_up_HI, down_IH = self._gate_up_LEHI[layer, local], self._down_LEIH[layer, local]
                gate_up_HI[:, :width] = checkpoint.view(f"{prefix}.gate_proj.weight", (width, hidden)).T
                gate_up_HI[:, width:] = checkpoint.view(f"{prefix}.up_proj.weight", (width, hidden)).T
                down_IH[:] = checkpoint.view(f"{prefix}.down_proj.weight", (hidden, width)).T

    @torch.inference_mode()
    async def super_kernel(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        """See `MoEStage`; rows in the compute type, results too."""
        ends_E = num_rows_E.cumsum(0, dtype=torch.int32)
        gate_up_RI = torch._grouped_mm(rows_RH, self._gate_up_LEHI[layer], offs=ends_E)
        gate_RI, up_RI = gate_up_RI.chunk(2, dim=1)
        return torch._grouped_mm(functional.silu(gate_RI).mul_(up_RI), self._down_LEIH[layer], offs=ends_E)
