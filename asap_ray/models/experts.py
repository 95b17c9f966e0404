"""The routed experts of one MoE device: all layers in one table, the layer a number that comes with rows (3.4.2)."""

# Shapes: L MoE layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I.

from __future__ import annotations

from collections.abc import Iterator

import torch

from asap_ray.models.config import ModelConfig
from asap_ray.models.fused import swiglu
from asap_ray.models.weights import Checkpoint


class ExpertStage:
    """`MoEStage` of SwiGLU experts. Matrices lie as in checkpoints, [out, in]: docs/log.md has what was measured."""

    def __init__(self, gate_up_LEJH: torch.Tensor, down_LEHI: torch.Tensor) -> None:
        self._gate_up_LEHJ = gate_up_LEJH.mT
        self._down_LEIH = down_LEHI.mT

    async def super_kernel(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        """See `MoEStage`. One call whatever the layer and however few the rows; results in the type of the weights."""
        with torch.inference_mode():
            gate_up_EHJ, down_EIH = self._gate_up_LEHJ[layer], self._down_LEIH[layer]
            results_RH = torch.empty_like(rows_RH)
            for expert, own in rows_by_expert(num_rows_E):
                # One expert after the other: what its products hand on stays in cache (docs/log.md).
                torch.mm(swiglu(rows_RH[own] @ gate_up_EHJ[expert]), down_EIH[expert], out=results_RH[own])
            return results_RH


def rows_by_expert(num_rows_E: torch.Tensor) -> Iterator[tuple[int, slice]]:
    """Each expert that has rows, and which of the grouped rows they are."""
    start = 0
    for expert, num_rows in enumerate(num_rows_E.tolist()):
        if num_rows:
            yield expert, slice(start, start + num_rows)
        start += num_rows


def read_experts(
    checkpoint: Checkpoint, config: ModelConfig, experts: range
) -> Iterator[tuple[int, int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Layer, place among `experts`, and the matrices of each: gate and up [I, H], down [H, I]."""
    hidden, width, names = config.hidden, config.moe_intermediate, config.names
    for layer, layer_idx in enumerate(config.moe_layers):
        for local, expert in enumerate(experts):
            prefix = f"model.layers.{layer_idx}.{names.block}.experts.{expert}"
            gate_IH = checkpoint.part(f"{prefix}.{names.gate}.weight", (width, hidden))
            up_IH = checkpoint.part(f"{prefix}.{names.up}.weight", (width, hidden))
            yield layer, local, (gate_IH, up_IH, checkpoint.part(f"{prefix}.{names.down}.weight", (hidden, width)))


def load_experts(checkpoint: Checkpoint, config: ModelConfig, experts: range, dtype: torch.dtype) -> ExpertStage:
    """The stage of one device's experts."""
    return ExpertStage(*load_expert_weights(checkpoint, config, experts, dtype))


def load_expert_weights(
    checkpoint: Checkpoint, config: ModelConfig, experts: range, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the experts of one device, by their global ids: gate and up [L, E, J, H], down [L, E, H, I]."""
    num_layers, hidden, width = len(config.moe_layers), config.hidden, config.moe_intermediate
    gate_up_LEJH = torch.empty(num_layers, len(experts), 2 * width, hidden, dtype=dtype)
    down_LEHI = torch.empty(num_layers, len(experts), hidden, width, dtype=dtype)
    for layer, local, (gate_IH, up_IH, down_HI) in read_experts(checkpoint, config, experts):
        gate_up_LEJH[layer, local, :width] = gate_IH
        gate_up_LEJH[layer, local, width:] = up_IH
        down_LEHI[layer, local] = down_HI
    return gate_up_LEJH, down_LEHI
