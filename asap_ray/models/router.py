"""Top-k softmax routing: which experts a token goes to, and with what weight."""

# Shapes: S tokens, H hidden, E experts of a layer, K experts per token.

from __future__ import annotations

import torch


def route(
    hidden_SH: torch.Tensor, gate_HE: torch.Tensor, top_k: int, *, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts in float32: a rounded score sends tokens elsewhere.

    Args:
        hidden_SH: float32, normalised.
        gate_HE: float32.
        top_k: experts per token.
        normalise: whether the K weights are scaled to sum to 1 (norm_topk_prob).

    Returns:
        expert_ids_SK int32, distinct within a row, and weights_SK float32.
    """
    scores_SE = torch.softmax(hidden_SH @ gate_HE, dim=-1)
    weights_SK, expert_ids_SK = scores_SE.topk(top_k, dim=-1)
    if normalise:
        weights_SK = weights_SK / weights_SK.sum(-1, keepdim=True)
    return expert_ids_SK.int(), weights_SK
