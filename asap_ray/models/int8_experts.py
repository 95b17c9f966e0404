"""Routed experts in int8 (W8A8): a scale for each output of a matrix, and for each row that goes in."""

# Shapes: L MoE layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I,
#         A inputs of a matrix, B its outputs.

from __future__ import annotations

from collections.abc import Sequence

import torch

from asap_ray.models.config import ModelConfig
from asap_ray.models.experts import read_experts, rows_by_expert
from asap_ray.models.fused import swiglu
from asap_ray.models.weights import Checkpoint


def quantise(x_RA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as int8, their largest number 127, and float32 scales [R, 1]; a row of zeros has a scale of its own, 1."""
    largest_R1 = x_RA.abs().amax(dim=1, keepdim=True).float()
    scale_R1 = torch.where(largest_R1 > 0, largest_R1 / 127, 1.0)
    return (x_RA / scale_R1).round_().to(torch.int8), scale_R1


class Int8Table:
    """One matrix of every layer and expert, [B, A] as in checkpoints, with a scale for each of its B outputs."""

    def __init__(self, num_layers: int, num_experts: int, shape: tuple[int, int]) -> None:
        self.weight_LEBA = torch.empty(num_layers, num_experts, *shape, dtype=torch.int8)
        self.scale_LEB = torch.empty(num_layers, num_experts, shape[0])

    def put(self, layer: int, expert: int, weight_BA: torch.Tensor) -> None:
        """Quantise one matrix."""
        self.weight_LEBA[layer, expert], scale_B1 = quantise(weight_BA.float())
        self.scale_LEB[layer, expert] = scale_B1[:, 0]

    def multiply(self, layer: int, expert: int, x_RA: torch.Tensor) -> torch.Tensor:
        """Rows times the transposed matrix, [R, B] in their type: exact in int32, then scaled."""
        quantised_RA, scale_R1 = quantise(x_RA)
        product_RB = torch._int_mm(quantised_RA, self.weight_LEBA[layer, expert].T).float()
        return product_RB.mul_(scale_R1).mul_(self.scale_LEB[layer, expert]).to(x_RA.dtype)


class Int8ExpertStage:
    """`MoEStage` of SwiGLU experts in a quarter of float32's memory; rows keep the type they come in."""

    def __init__(self, gate_up: Int8Table, down: Int8Table) -> None:
        self.gate_up = gate_up
        self.down = down

    async def super_kernel(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        """See `MoEStage`."""
        with torch.inference_mode():
            results_RH = torch.empty_like(rows_RH)
            for expert, own in rows_by_expert(num_rows_E):
                mixed_RI = swiglu(self.gate_up.multiply(layer, expert, rows_RH[own]))
                results_RH[own] = self.down.multiply(layer, expert, mixed_RI)
            return results_RH


def load_int8_experts(checkpoint: Checkpoint, config: ModelConfig, experts: Sequence[int]) -> Int8ExpertStage:
    """Read and quantise the experts of one device, by their global ids; one expert at a time is wide."""
    num_layers, hidden, width = len(config.moe_layers), config.hidden, config.moe_intermediate
    gate_up = Int8Table(num_layers, len(experts), (2 * width, hidden))
    down = Int8Table(num_layers, len(experts), (hidden, width))
    for layer, local, (gate_IH, up_IH, down_HI) in read_experts(checkpoint, config, experts):
        gate_up.put(layer, local, torch.cat((gate_IH, up_IH)))
        down.put(layer, local, down_HI)
    return Int8ExpertStage(gate_up, down)
