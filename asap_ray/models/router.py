"""Which experts a token goes to, and with what weight: top-k softmax, or DeepSeek's groups of sigmoid scores."""

# Shapes: S tokens, H hidden, E experts of a layer, G groups of X experts, K experts per token.

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from asap_ray.errors import ConfigError
from asap_ray.models.config import ModelConfig
from asap_ray.models.weights import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxRouting:
    """The K likeliest of a softmax over all experts."""

    bias: ClassVar[str | None] = None

    top_k: int
    normalise: bool  # whether the K weights are scaled to sum to 1

    def choose(self, logits_SE: torch.Tensor, bias_E: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Routing`."""
        assert bias_E is None
        weights_SK, expert_ids_SK = torch.softmax(logits_SE, dim=-1).topk(self.top_k, dim=-1)
        if self.normalise:
            weights_SK = weights_SK / weights_SK.sum(-1, keepdim=True)
        return expert_ids_SK, weights_SK


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRouting:
    """The K best of the best groups of experts, by sigmoid score plus a correction that balances load.

    `noaux_tc` of DeepSeek-V3 (section 2.1.2): a group is worth its two best experts; the correction
    decides who is chosen and is no part of the weight.
    """

    bias: ClassVar[str | None] = "gate.e_score_correction_bias"

    num_experts: int
    top_k: int
    normalise: bool
    scale: float  # of the weights, at the end
    num_groups: int
    top_groups: int  # groups a token may use

    def __post_init__(self) -> None:
        size = self.num_experts // self.num_groups
        if self.num_experts % self.num_groups or size < 2:
            raise ConfigError(
                f"n_group={self.num_groups} must divide n_routed_experts={self.num_experts}, by 2 or more"
            )
        if self.top_groups > self.num_groups:
            raise ConfigError(f"topk_group={self.top_groups} exceeds n_group={self.num_groups}")
        if self.top_k > self.top_groups * size:
            raise ConfigError(
                f"num_experts_per_tok={self.top_k} exceeds the {self.top_groups * size} experts of topk_group groups"
            )

    def choose(self, logits_SE: torch.Tensor, bias_E: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Routing`."""
        assert bias_E is not None
        scores_SE = logits_SE.sigmoid()
        ranked_SGX = (scores_SE + bias_E).view(len(scores_SE), self.num_groups, self.num_experts // self.num_groups)
        if self.top_groups < self.num_groups:
            worth_SG = ranked_SGX.topk(2, dim=-1).values.sum(-1)
            out_SG = torch.ones_like(worth_SG, dtype=torch.bool)
            out_SG.scatter_(1, worth_SG.topk(self.top_groups, dim=-1).indices, value=False)
            ranked_SGX = ranked_SGX.masked_fill(out_SG[..., None], -torch.inf)
        expert_ids_SK = ranked_SGX.flatten(1).topk(self.top_k, dim=-1).indices
        weights_SK = scores_SE.gather(1, expert_ids_SK)
        if self.normalise:
            weights_SK = weights_SK / (weights_SK.sum(-1, keepdim=True) + 1e-20)
        return expert_ids_SK, weights_SK * self.scale


class Router:
    """The router of one layer, whole on every rank and in float32: a rounded score sends tokens elsewhere."""

    def __init__(self, shard: Shard, config: ModelConfig, layer_idx: int) -> None:
        block, num_experts = f"model.layers.{layer_idx}.{config.names.block}", config.num_experts
        gate_EH = shard.checkpoint.view(f"{block}.gate.weight", (num_experts, config.hidden))
        gate_HE = gate_EH.T.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        self._gate_HE = gate_HE.to(shard.kernels.device)
        self._choose = config.routing.choose
        self._bias_E = shard.vector(f"{block}.{config.routing.bias}", num_experts) if config.routing.bias else None

    def __call__(self, hidden_SH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts int32 and weights float32 of normalised float32 rows, [S, K] each; a token's experts are distinct."""
        expert_ids_SK, weights_SK = self._choose(hidden_SH @ self._gate_HE, self._bias_E)
        return expert_ids_SK.int(), weights_SK
