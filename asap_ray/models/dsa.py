"""DeepSeek sparse attention (DSA, DeepSeek-V3.2): a lightning indexer chooses which tokens a query attends to.

The indexer compares every query with every key before it, cheaply: I_ts = sum_h w_th relu(q_th . k_s). Latent
attention then sees the `top_k` best alone, so its own cost is linear in the length of the prompt.
"""

# Shapes: S tokens of the batch, R rows of this rank, n queries of one request over its m tokens so far, H hidden,
#         N heads of this rank, Q rank of the queries' latent, C of the keys' and values', D dimensions of a query,
#         V of a value, W of what the cache keeps, I heads of the indexer, X their dimensions, K tokens chosen,
#         A = Q + W + X + I, q queries of a section, b of a block.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import indexer
from asap_ray.models.config import ModelConfig
from asap_ray.models.mla import NORM_EPS, Latent, LatentAttention
from asap_ray.models.passes import Sequence
from asap_ray.models.rope import Angles, Rope
from asap_ray.models.weights import Shape, Shard

BLOCK: Final = 1 << 21
"""Numbers a block of queries may make: scores of the indexer's heads, and latents chosen; 8 MiB are still in cache."""

SECTION: Final = 128
"""Queries that meet the up-projections together: one alone would read all their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatent:
    """The sizes of latent attention with an indexer."""

    latent: Latent
    num_heads: int  # I
    head_dim: int  # X, of which the first are rotated
    top_k: int  # K

    def __post_init__(self) -> None:
        if not self.latent.query_rank:
            raise ConfigError("q_lora_rank must be given: the indexer makes its queries of their latent")
        if self.head_dim < self.rope.dim:
            raise ConfigError(f"index_head_dim={self.head_dim} is less than qk_rope_head_dim={self.rope.dim}")

    @property
    def rope(self) -> Rope:
        """See `Attention`."""
        return self.latent.rope

    def layer(self, shard: Shard, config: ModelConfig, layer_idx: int) -> SparseLatentAttention:
        """See `Attention`."""
        return SparseLatentAttention(shard, self, config.hidden, layer_idx)

    def tensors(self, name: str, hidden: int) -> Iterator[tuple[str, Shape]]:
        """See `Attention`."""
        yield from self.latent.tensors(name, hidden)
        yield f"{name}.indexer.wq_b.weight", (self.num_heads * self.head_dim, self.latent.query_rank)
        yield f"{name}.indexer.wk.weight", (self.head_dim, hidden)
        yield f"{name}.indexer.weights_proj.weight", (self.num_heads, hidden)
        yield f"{name}.indexer.k_norm.weight", (self.head_dim,)
        yield f"{name}.indexer.k_norm.bias", (self.head_dim,)


class Indexer:
    """Weights of one layer's lightning indexer, whole on every rank: all heads attend to the same tokens."""

    def __init__(self, shard: Shard, sizes: SparseLatent, hidden: int, layer_idx: int) -> None:
        name, part = f"model.layers.{layer_idx}.self_attn.indexer", shard.checkpoint.part
        num_heads, head_dim, rank = sizes.num_heads, sizes.head_dim, sizes.latent.query_rank
        self.num_heads, self.head_dim = num_heads, head_dim
        self._rotate_ = shard.kernels.rotate_
        self._query_QX = shard.own(part(f"{name}.wq_b.weight", (num_heads * head_dim, rank)).T)
        self._key_HX = shard.own(part(f"{name}.wk.weight", (head_dim, hidden)).T)
        weights_IH = part(f"{name}.weights_proj.weight", (num_heads, hidden)).float() * (num_heads * head_dim) ** -0.5
        self._weights_HI = shard.own(weights_IH.T)
        norm = (shard.vector(f"{name}.k_norm.{which}", head_dim) for which in ("weight", "bias"))
        self._norm_X, self._shift_X = norm

    def compress(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Keys, normalised and not yet rotated, and the weights of the heads, [R, X + I]."""
        key_RX = (hidden_RH @ self._key_HX).float()
        key_RX = functional.layer_norm(key_RX, (self.head_dim,), self._norm_X, self._shift_X, NORM_EPS)
        return torch.cat((key_RX.to(hidden_RH.dtype), hidden_RH @ self._weights_HI), dim=1)

    def queries(self, query_SQ: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Rotated queries of all heads, [S, I, X]."""
        query_SIX = (query_SQ @ self._query_QX).view(len(query_SQ), self.num_heads, self.head_dim)
        self._rotate_(query_SIX, angles)
        return query_SIX

    def rotate_keys_(self, key_SX: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Keys as a cache keeps them, [S, 1, X]; in place."""
        key_S1X = key_SX[:, None]
        self._rotate_(key_S1X, angles)
        return key_S1X


def score(query_bIX: torch.Tensor, weights_bI: torch.Tensor, key_sX: torch.Tensor) -> torch.Tensor:
    """How much each of the last b of s tokens wants each token, float32 [b, s]; minus infinity for what comes later.

    Args:
        query_bIX: rotated.
        weights_bI: of the heads, the scale of the products in them.
        key_sX: float32, rotated.
    """
    num_queries, num_heads, _ = query_bIX.shape
    each_bIs = (query_bIX.flatten(0, 1).float() @ key_sX.T).relu_().view(num_queries, num_heads, len(key_sX))
    scores_bs: torch.Tensor = torch.bmm(weights_bI[:, None].float(), each_bIs)[:, 0]
    later_bb = torch.ones(num_queries, num_queries, dtype=torch.bool).triu_(1).to(scores_bs.device)
    scores_bs[:, -num_queries:].masked_fill_(later_bb, -torch.inf)
    return scores_bs


class SparseLatentAttention:
    """Weights of one layer on rank j, and the attention they make."""

    def __init__(self, shard: Shard, sizes: SparseLatent, hidden: int, layer_idx: int) -> None:
        self._sizes = sizes
        self._layer_idx = layer_idx
        self._latent = LatentAttention(shard, sizes.latent, hidden, layer_idx)
        self._indexer = Indexer(shard, sizes, hidden, layer_idx)
        self.kept = (*self._latent.kept, indexer(sizes.head_dim))

    def workspace(self, num_tokens: int, num_threads: int) -> int:
        """See `AttentionLayer`: also what the indexer makes, and blocks of scores and of latents chosen."""
        sizes = self._sizes
        width = sizes.num_heads * (sizes.head_dim + 1) + 2 * sizes.head_dim
        scores = 2 * max(BLOCK, num_tokens * sizes.num_heads)
        return self._latent.workspace(num_tokens, num_threads) + num_tokens * width + scores

    def compress(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """See `AttentionLayer`: what latent attention needs, then what the indexer needs."""
        return torch.cat((self._latent.compress(hidden_RH), self._indexer.compress(hidden_RH)), dim=1)

    def __call__(self, rows_SA: torch.Tensor, angles: Angles, sequences: list[Sequence]) -> torch.Tensor:
        """See `AttentionLayer`."""
        sizes = self._sizes
        rank, num_heads = sizes.latent.query_rank, sizes.num_heads
        latent_SA, index_key_SX, weights_SI = torch.split(
            rows_SA, [rank + sizes.latent.kept_dim, sizes.head_dim, num_heads], dim=1
        )
        query_SND, kept_S1W = self._latent.project(latent_SA, angles)
        index_key_S1X = self._indexer.rotate_keys_(index_key_SX, angles)
        index_query_SIX = self._indexer.queries(latent_SA[:, :rank], angles)
        mixed_SNV = query_SND.new_zeros(*query_SND.shape[:2], sizes.latent.value_dim)
        for sequence in sequences:
            own = sequence.rows
            kept_1mW, index_key_1mX = sequence.extend(self._layer_idx, kept_S1W[own], index_key_S1X[own])
            # Queries that see no more than top_k tokens attend to all of them.
            num_all = min(max(sizes.top_k - sequence.num_cached, 0), sequence.num_rows)
            dense, sparse = slice(own.start, own.start + num_all), slice(own.start + num_all, own.stop)
            if num_all:
                mixed_SNV[dense] = self._latent.attend(query_SND[dense], kept_1mW[:, : sequence.num_cached + num_all])
            if num_all < sequence.num_rows:
                index = index_query_SIX[sparse], weights_SI[sparse], index_key_1mX[0].float().contiguous()
                self._attend_chosen(mixed_SNV[sparse], query_SND[sparse], kept_1mW[0].contiguous(), index)
        return self._latent.combine(mixed_SNV)

    def _attend_chosen(
        self,
        mixed_nNV: torch.Tensor,
        query_nND: torch.Tensor,
        kept_mW: torch.Tensor,
        index: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        """Attention of the last n of m tokens to the `top_k` each of them wants most; fills `mixed_nNV`."""
        index_query_nIX, weights_nI, index_key_mX = index
        num_past = len(kept_mW) - len(query_nND)
        for section in slices_of(range(len(query_nND)), SECTION):
            query_qNW = self._latent.absorb(query_nND[section])
            latent_qNC = query_qNW.new_empty(*query_qNW.shape[:2], self._sizes.latent.latent_rank)
            for block in slices_of(range(section.start, section.stop), self.block_size(len(kept_mW))):
                key_sX = index_key_mX[: num_past + block.stop]
                scores_bs = score(index_query_nIX[block], weights_nI[block], key_sX)
                chosen_bK = scores_bs.topk(self._sizes.top_k, dim=-1, sorted=False).indices
                own = slice(block.start - section.start, block.stop - section.start)
                latent_qNC[own] = self.mix(query_qNW[own], kept_mW, chosen_bK)
            mixed_nNV[section] = self._latent.raise_values(latent_qNC)

    def mix(self, query_bNW: torch.Tensor, kept_mW: torch.Tensor, chosen_bK: torch.Tensor) -> torch.Tensor:
        """Each head's mix of the latents chosen, [b, N, C]: its cost does not depend on the prompt's length."""
        chosen_bKW = kept_mW.index_select(0, chosen_bK.flatten()).view(*chosen_bK.shape, kept_mW.shape[1])
        shares_bNK = torch.softmax((query_bNW @ chosen_bKW.mT).float(), dim=-1).to(query_bNW.dtype)
        return shares_bNK @ chosen_bKW[..., : self._sizes.latent.latent_rank]

    def block_size(self, num_tokens: int) -> int:
        """As many queries over so many tokens as `BLOCK` allows."""
        sizes = self._sizes
        return max(1, BLOCK // max(sizes.num_heads * num_tokens, sizes.top_k * sizes.latent.kept_dim))


def slices_of(positions: range, step: int) -> Iterator[slice]:
    """Positions, `step` at a time."""
    for start in positions[::step]:
        yield slice(start, min(start + step, positions.stop))
