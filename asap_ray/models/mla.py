"""Multi-head latent attention (MLA, DeepSeek-V2 section 2.1) of one layer, the heads of one rank.

All heads' keys and values are made of one small latent a token, and of one key that carries the rotation.
The two, side by side, are all the cache keeps.
"""

# Shapes: S tokens of the batch, R rows of this rank, n queries of one request over its m tokens so far, H hidden,
#         N heads of this rank, Q rank of the queries' latent, C of the keys' and values', P rotated dimensions,
#         U others, D = U + P, V value dimensions, W = C + P what the cache keeps, A = Q + W.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import latent
from asap_ray.models.config import ModelConfig
from asap_ray.models.matrix import Matrix
from asap_ray.models.passes import Sequence
from asap_ray.models.rope import Angles, Rope
from asap_ray.models.weights import Shape, Shard

NORM_EPS: Final = 1e-6
"""Of the norms of the two latents, whatever the model's other norms use."""

EXPANDED: Final = 1 << 24
"""Numbers of keys, and as many of values, that exist at a time: heads are taken a few at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The sizes of latent attention."""

    num_heads: int
    query_rank: int  # Q; 0: queries are made of the hidden state itself
    latent_rank: int  # C
    nope_dim: int  # U
    value_dim: int  # V
    rope: Rope

    def __post_init__(self) -> None:
        if self.value_dim > self.head_dim:
            raise ConfigError(f"v_head_dim={self.value_dim} exceeds the {self.head_dim} dimensions of a query")

    @property
    def head_dim(self) -> int:
        """Dimensions of a query, D."""
        return self.nope_dim + self.rope.dim

    @property
    def kept_dim(self) -> int:
        """What a token leaves in the cache, W."""
        return self.latent_rank + self.rope.dim

    def layer(self, shard: Shard, config: ModelConfig, layer_idx: int) -> LatentAttention:
        """See `Attention`."""
        return LatentAttention(shard, self, config.hidden, layer_idx)

    def tensors(self, name: str, hidden: int) -> Iterator[tuple[str, Shape]]:
        """See `Attention`."""
        queries = self.num_heads * self.head_dim
        if self.query_rank:
            yield f"{name}.q_a_proj.weight", (self.query_rank, hidden)
            yield f"{name}.q_a_layernorm.weight", (self.query_rank,)
            yield f"{name}.q_b_proj.weight", (queries, self.query_rank)
        else:
            yield f"{name}.q_proj.weight", (queries, hidden)
        yield f"{name}.kv_a_proj_with_mqa.weight", (self.kept_dim, hidden)
        yield f"{name}.kv_a_layernorm.weight", (self.latent_rank,)
        yield f"{name}.kv_b_proj.weight", (self.num_heads * (self.nope_dim + self.value_dim), self.latent_rank)
        yield f"{name}.o_proj.weight", (hidden, self.num_heads * self.value_dim)


class LatentAttention:
    """Weights of one layer on rank j, and the attention they make.

    Queries carry the softmax scale of YaRN in their weights.
    """

    def __init__(self, shard: Shard, sizes: Latent, hidden: int, layer_idx: int) -> None:
        if sizes.num_heads % shard.size:
            raise ConfigError(f"tp={shard.size} must divide num_attention_heads={sizes.num_heads}")
        self._sizes = sizes
        self._layer_idx = layer_idx
        self._kernels = shard.kernels
        self.kept = (latent(sizes.latent_rank, sizes.rope.dim),)
        name, heads = f"model.layers.{layer_idx}.self_attn", shard.part(sizes.num_heads)
        part = shard.checkpoint.part
        down = part(f"{name}.kv_a_proj_with_mqa.weight", (sizes.kept_dim, hidden))
        if sizes.query_rank:
            query_down = part(f"{name}.q_a_proj.weight", (sizes.query_rank, hidden))
            down = torch.cat((query_down.to(down.dtype), down))
            self._query_norm_Q = shard.vector(f"{name}.q_a_layernorm.weight", sizes.query_rank)
        self._down_HA = Matrix(shard.own(down.T))
        self._latent_norm_C = shard.vector(f"{name}.kv_a_layernorm.weight", sizes.latent_rank)
        self._query_QX = self._read_query(
            shard, f"{name}.q_b_proj.weight" if sizes.query_rank else f"{name}.q_proj.weight", hidden
        )
        up_dim = sizes.nope_dim + sizes.value_dim
        rows = slice(heads.start * up_dim, heads.stop * up_dim)
        up = part(f"{name}.kv_b_proj.weight", (sizes.num_heads * up_dim, sizes.latent_rank), rows)
        self._up_CX = shard.own(up.T)
        self._up_NXC = self._up_CX.view(sizes.latent_rank, len(heads), up_dim).permute(1, 2, 0)  # by head, no copy
        out = (hidden, sizes.num_heads * sizes.value_dim)
        self._out_XH = Matrix(shard.row_parallel(f"{name}.o_proj.weight", out))

    def _read_query(self, shard: Shard, name: str, hidden: int) -> Matrix:
        sizes, heads = self._sizes, shard.part(self._sizes.num_heads)
        head_dim, rank = sizes.head_dim, sizes.query_rank or hidden
        rows = slice(heads.start * head_dim, heads.stop * head_dim)
        weight = shard.checkpoint.part(name, (sizes.num_heads * head_dim, rank), rows)
        if sizes.rope.yarn:
            weight = weight.float() * sizes.rope.yarn.softmax_scale
        return Matrix(shard.own(weight.T))

    def workspace(self, num_tokens: int, num_threads: int) -> int:
        """See `AttentionLayer`: latents, queries, what they make; keys and values of few heads, some in panels."""
        sizes, num_heads = self._sizes, len(self._up_NXC)
        width = self._down_HA.num_outputs + num_heads * (sizes.head_dim + sizes.value_dim)
        in_panels = max(min(num_threads, num_heads) * (sizes.head_dim + sizes.value_dim), 2 * sizes.kept_dim)
        return num_tokens * (width + in_panels) + 3 * max(EXPANDED, num_tokens * sizes.head_dim)

    def compress(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """See `AttentionLayer`: the latents, normalised, and the key to be rotated."""
        down_RA = self._down_HA(hidden_RH)
        rank = self._sizes.query_rank
        latent_RC = down_RA[:, rank : rank + self._sizes.latent_rank]
        latent_RC.copy_(self._kernels.rms_norm(latent_RC.float().contiguous(), self._latent_norm_C, NORM_EPS))
        if not rank:
            return torch.cat((hidden_RH, down_RA), dim=1)
        query_RQ = down_RA[:, :rank]
        query_RQ.copy_(self._kernels.rms_norm(query_RQ.float().contiguous(), self._query_norm_Q, NORM_EPS))
        return down_RA

    def __call__(self, rows_SA: torch.Tensor, angles: Angles, sequences: list[Sequence]) -> torch.Tensor:
        """See `AttentionLayer`."""
        query_SND, kept_S1W = self.project(rows_SA, angles)
        mixed_SNV = query_SND.new_zeros(*query_SND.shape[:2], self._sizes.value_dim)
        for sequence in sequences:
            (kept_1mW,) = sequence.extend(self._layer_idx, kept_S1W[sequence.rows])
            mixed_SNV[sequence.rows] = self.attend(query_SND[sequence.rows], kept_1mW)
        return self.combine(mixed_SNV)

    def project(self, rows_SA: torch.Tensor, angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [S, N, D], and what the cache keeps [S, 1, W], both rotated; the latter in place."""
        sizes = self._sizes
        query_SQ, kept_SW = rows_SA[:, : -sizes.kept_dim], rows_SA[:, -sizes.kept_dim :]
        query_SND = self._query_QX(query_SQ).view(len(rows_SA), len(self._up_NXC), sizes.head_dim)
        kept_S1W = kept_SW[:, None]
        self._kernels.rotate_pairs_(query_SND[..., sizes.nope_dim :], angles)
        self._kernels.rotate_pairs_(kept_S1W[..., sizes.latent_rank :], angles)
        return query_SND, kept_S1W

    def combine(self, mixed_SNV: torch.Tensor) -> torch.Tensor:
        """The heads' part of the output sum, [S, H]."""
        return self._out_XH(mixed_SNV.flatten(1))

    def attend(self, query_nND: torch.Tensor, kept_1mW: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last n of m tokens, [n, N, V]: by whichever of two equal ways computes less."""
        sizes, num_new, num_keys = self._sizes, len(query_nND), kept_1mW.shape[1]
        num_pairs = num_new * (num_keys - num_new / 2)
        up_cost = sizes.latent_rank * (sizes.nope_dim + sizes.value_dim)
        saved = (num_keys - num_new) * up_cost - 2 * num_pairs * (sizes.kept_dim - sizes.head_dim)
        return self._attend_latents(query_nND, kept_1mW) if saved > 0 else self._attend_heads(query_nND, kept_1mW)

    def _attend_heads(self, query_nND: torch.Tensor, kept_1mW: torch.Tensor) -> torch.Tensor:
        """With the keys and values of each head."""
        mixed_nNV = query_nND.new_empty(*query_nND.shape[:2], self._sizes.value_dim)
        for heads, key_bmD, value_bmV in self._expand(kept_1mW[0]):
            mixed_nNV[:, heads] = self._kernels.attend(query_nND[:, heads], key_bmD, value_bmV)
        return mixed_nNV

    def _expand(self, kept_mW: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Keys and values of a few heads at a time."""
        sizes, num_tokens = self._sizes, len(kept_mW)
        latent_mC, rotated_mP = kept_mW[:, : sizes.latent_rank], kept_mW[:, sizes.latent_rank :]
        num_heads, up_dim, _ = self._up_NXC.shape
        step = max(1, EXPANDED // (num_tokens * sizes.head_dim))
        for start in range(0, num_heads, step):
            heads = slice(start, min(start + step, num_heads))
            up_mX = latent_mC @ self._up_CX[:, start * up_dim : heads.stop * up_dim]
            up_bmX = up_mX.view(num_tokens, heads.stop - start, up_dim).transpose(0, 1)
            key_bmD = kept_mW.new_empty(heads.stop - start, num_tokens, sizes.head_dim)
            key_bmD[..., : sizes.nope_dim] = up_bmX[..., : sizes.nope_dim]
            key_bmD[..., sizes.nope_dim :] = rotated_mP
            yield heads, key_bmD, up_bmX[..., sizes.nope_dim :]

    def _attend_latents(self, query_nND: torch.Tensor, kept_1mW: torch.Tensor) -> torch.Tensor:
        """With the latents as keys and values of all heads at once."""
        query_nNW = self.absorb(query_nND) * self._sizes.kept_dim**0.5
        mixed_nNW = self._kernels.attend(query_nNW, kept_1mW, kept_1mW)
        return self.raise_values(mixed_nNW[..., : self._sizes.latent_rank])

    def absorb(self, query_nND: torch.Tensor) -> torch.Tensor:
        """Queries that meet latents instead of keys, [n, N, W]; their products are the softmax's arguments."""
        sizes = self._sizes
        query_NnU = query_nND[..., : sizes.nope_dim].transpose(0, 1)
        latent_nNC = (query_NnU @ self._up_NXC[:, : sizes.nope_dim]).transpose(0, 1)
        return torch.cat((latent_nNC, query_nND[..., sizes.nope_dim :]), dim=-1).mul_(sizes.head_dim**-0.5)

    def raise_values(self, latent_nNC: torch.Tensor) -> torch.Tensor:
        """Each head's values of its mix of latents, [n, N, V]."""
        value_NnV = latent_nNC.transpose(0, 1) @ self._up_NXC[:, self._sizes.nope_dim :].mT
        return value_NnV.transpose(0, 1)
