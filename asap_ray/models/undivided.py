"""A whole model in one place: the attention stage of a group of one rank, and all experts beside it."""

# Shapes: S tokens of a pass, H hidden, K experts per token, E experts, R = S * K (token, expert) pairs.

from __future__ import annotations

from typing import Any

import torch

from asap_ray.batch import Batch
from asap_ray.models.decoder import Decoder
from asap_ray.protocol import Finished, MoEStage, Routed


class Undivided:
    """What the engine's loops do with devices, one pass after the other: nothing is sent, nothing waits."""

    def __init__(self, attention: Decoder, experts: MoEStage, num_experts: int) -> None:
        """`experts` are all of them, by their global ids."""
        self.attention = attention
        self._experts = experts
        self._num_experts = num_experts

    async def start(self, batch: Batch) -> Any:
        """See `AttentionStage`."""
        return await self.attention.start(batch)

    async def step(self, state: Any) -> Finished:
        """One pass through all layers: the first tokens, or one more of each request."""
        expert_out_SH: torch.Tensor | None = None
        for layer in range(self.attention.num_layers):
            routed = await self.attention.attend(state, layer, expert_out_SH)
            expert_out_SH = await self._combine(layer, routed)
        assert expert_out_SH is not None, "a model has a MoE layer"
        return await self.attention.finish(state, expert_out_SH)

    async def _combine(self, layer: int, routed: Routed) -> torch.Tensor:
        """The weighted sum over each token's experts, [S, H], in the compute type."""
        with torch.inference_mode():
            top_k = routed.expert_ids_SK.shape[1]
            order_R = routed.expert_ids_SK.flatten().argsort(stable=True)
            row_idx_R = order_R // top_k
            num_rows_E = routed.expert_ids_SK.flatten().bincount(minlength=self._num_experts).int()
            results_RH = await self._experts.super_kernel(layer, routed.hidden_SH[row_idx_R], num_rows_E)
            weights_R1 = routed.weights_SK.flatten()[order_R, None]
            sums_SH = torch.zeros_like(routed.hidden_SH, dtype=torch.float32)
            sums_SH.index_add_(0, row_idx_R, results_RH.float() * weights_R1)
            return sums_SH.to(routed.hidden_SH.dtype)
