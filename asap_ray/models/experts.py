"""The routed experts of one MoE device: all layers in one table, the layer a number that comes with rows (3.4.2)."""

# Shapes: L MoE layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I,
#         P panels of C = 32 columns (asap_ray.models.matrix).

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from asap_ray.models.config import ModelConfig
from asap_ray.models.fused import swiglu
from asap_ray.models.matrix import fill, fill_gate_up, multiply_swiglu, panels_for
from asap_ray.models.weights import Checkpoint
from asap_ray.protocol import MoEStage

Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of an expert: gate and up [I, H], down [H, I]."""


class PanelExpertStage:
    """`MoEStage` of SwiGLU experts in float32, through native products whose middle never leaves the cache."""

    def __init__(self, num_layers: int, num_experts: int, hidden: int, width: int) -> None:
        """Tables of so many experts; `put` fills them."""
        gate_up_PHC, down_PIC = panels_for(hidden, width)
        self._gate_up_LEPHC = torch.zeros(num_layers, num_experts, *gate_up_PHC)
        self._down_LEPIC = torch.zeros(num_layers, num_experts, *down_PIC)

    def put(self, layer: int, expert: int, matrices: Matrices) -> None:
        """Lay out one expert's matrices."""
        gate_IH, up_IH, down_HI = matrices
        fill_gate_up(self._gate_up_LEPHC[layer, expert], gate_IH.T, up_IH.T)
        fill(self._down_LEPIC[layer, expert], down_HI.T)

    async def super_kernel(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        """See `MoEStage`. One call whatever the layer and however few the rows."""
        with torch.inference_mode():
            return multiply_swiglu(rows_RH, num_rows_E, self._gate_up_LEPHC[layer], self._down_LEPIC[layer])


class ExpertStage:
    """The same in any type, through torch. Matrices lie as in checkpoints, [out, in]."""

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
    checkpoint: Checkpoint, config: ModelConfig, experts: Sequence[int]
) -> Iterator[tuple[int, int, Matrices]]:
    """Layer, place among `experts`, and the matrices of each: gate and up [I, H], down [H, I]."""
    hidden, width, names = config.hidden, config.moe_intermediate, config.names
    for layer, layer_idx in enumerate(config.moe_layers):
        for local, expert in enumerate(experts):
            prefix = f"model.layers.{layer_idx}.{names.block}.experts.{expert}"
            gate_IH = checkpoint.part(f"{prefix}.{names.gate}.weight", (width, hidden))
            up_IH = checkpoint.part(f"{prefix}.{names.up}.weight", (width, hidden))
            yield layer, local, (gate_IH, up_IH, checkpoint.part(f"{prefix}.{names.down}.weight", (hidden, width)))


def load_experts(checkpoint: Checkpoint, config: ModelConfig, experts: Sequence[int], dtype: torch.dtype) -> MoEStage:
    """The stage of one device's experts."""
    if dtype is not torch.float32:
        return ExpertStage(*load_expert_weights(checkpoint, config, experts, dtype))
    stage = PanelExpertStage(len(config.moe_layers), len(experts), config.hidden, config.moe_intermediate)
    for layer, local, matrices in read_experts(checkpoint, config, experts):
        stage.put(layer, local, matrices)
    return stage


def load_expert_weights(
    checkpoint: Checkpoint, config: ModelConfig, experts: Sequence[int], dtype: torch.dtype
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
