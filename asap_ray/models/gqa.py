"""Grouped-query attention of one layer, the heads of one rank; several requests a batch, none sees another."""

# Shapes: S tokens of the batch, n tokens of one request, H hidden, D head_dim,
#         N query heads of this rank, G its key-value heads.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import grouped_query
from asap_ray.models.config import ModelConfig
from asap_ray.models.fields import Fields
from asap_ray.models.fused import attend_in_panels
from asap_ray.models.matrix import Matrix
from asap_ray.models.passes import Sequence
from asap_ray.models.rope import Angles, Rope
from asap_ray.models.weights import Shape, Shard

PANEL_QUERIES: Final = 64
"""Queries of all heads that share a head of keys from which on laying out its keys and values pays."""


def kv_heads_of(config: GroupedQuery, query_heads: range) -> list[int]:
    """Key-value heads a rank needs so that its query heads divide evenly over them, in order.

    Where T does not divide the key-value heads some are held by several ranks; where a rank's query
    heads straddle groups unevenly, each gets a copy of its own.
    """
    group = config.num_heads // config.num_kv_heads
    owners = [head // group for head in query_heads]
    distinct = sorted(set(owners))
    share = len(owners) // len(distinct)
    return distinct if owners == [head for head in distinct for _ in range(share)] else owners


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQuery:
    """The sizes and switches of grouped-query attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )

    @classmethod
    def read(
        cls, fields: Fields, hidden: int, *, partial_rotary: float | None = None, **switches: bool
    ) -> GroupedQuery:
        """From the keys all families share; what differs is in `switches`."""
        num_heads = fields.size("num_attention_heads")
        head_dim = fields.size("head_dim", hidden // num_heads)
        return cls(
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads"),
            head_dim=head_dim,
            rope=fields.rope(head_dim, partial_rotary),
            **switches,
        )

    def layer(self, shard: Shard, config: ModelConfig, layer_idx: int) -> GroupedQueryAttention:
        """See `Attention`."""
        return GroupedQueryAttention(shard, self, config, layer_idx)

    def tensors(self, name: str, hidden: int) -> Iterator[tuple[str, Shape]]:
        """See `Attention`."""
        query, key_value = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        for letter, width in (("q", query), ("k", key_value), ("v", key_value)):
            yield f"{name}.{letter}_proj.weight", (width, hidden)
            if self.qkv_bias:
                yield f"{name}.{letter}_proj.bias", (width,)
        yield f"{name}.o_proj.weight", (hidden, query)
        if self.out_bias:
            yield f"{name}.o_proj.bias", (hidden,)
        if self.qk_norm:
            yield f"{name}.q_norm.weight", (self.head_dim,)
            yield f"{name}.k_norm.weight", (self.head_dim,)


class GroupedQueryAttention:
    """Weights of one layer on rank j, and the attention they make."""

    def __init__(self, shard: Shard, attention: GroupedQuery, config: ModelConfig, layer_idx: int) -> None:
        num_heads, head_dim = attention.num_heads, attention.head_dim
        if num_heads % shard.size:
            raise ConfigError(f"tp={shard.size} must divide num_attention_heads={num_heads}")
        self._layer_idx = layer_idx
        self._kernels = shard.kernels
        self._head_dim = head_dim
        self._eps = config.rms_norm_eps
        self._name, self._config = f"model.layers.{layer_idx}.self_attn", attention
        heads = shard.part(num_heads)
        kv_heads = kv_heads_of(attention, heads)
        self._split = [len(heads), len(kv_heads), len(kv_heads)]
        self.kept = (grouped_query(len(kv_heads), head_dim, tuple(kv_heads)),)
        self._qkv_HC = Matrix(self._qkv(shard, "weight", (config.hidden,)).T)
        self._out_CH = Matrix(shard.row_parallel(f"{self._name}.o_proj.weight", (config.hidden, num_heads * head_dim)))
        self._qkv_bias_C = self._qkv(shard, "bias", ()) if attention.qkv_bias else None
        self._out_bias_H = None
        if attention.out_bias and shard.rank == 0:  # partial sums are added up: once is enough
            self._out_bias_H = shard.own(shard.checkpoint.view(f"{self._name}.o_proj.bias", (config.hidden,)))
        self._norms_D: tuple[torch.Tensor, torch.Tensor] | None = None
        if attention.qk_norm:
            query_norm_D, key_norm_D = (shard.vector(f"{self._name}.{which}_norm.weight", head_dim) for which in "qk")
            self._norms_D = query_norm_D, key_norm_D

    def _qkv(self, shard: Shard, kind: str, width: tuple[int, ...]) -> torch.Tensor:
        """Weights or biases of this rank's heads, [C, *width]: queries, then keys, then values."""
        config, head_dim = self._config, self._head_dim
        heads = shard.part(config.num_heads)
        kv_heads = kv_heads_of(config, heads)
        parts = []
        for letter, num_heads, own in (
            ("q", config.num_heads, list(heads)),
            ("k", config.num_kv_heads, kv_heads),
            ("v", config.num_kv_heads, kv_heads),
        ):
            name, shape = f"{self._name}.{letter}_proj.{kind}", (num_heads * head_dim, *width)
            parts += [
                shard.checkpoint.part(name, shape, slice(head * head_dim, (head + 1) * head_dim)).to(shard.dtype)
                for head in own
            ]
        return torch.cat(parts).to(shard.kernels.device)

    def workspace(self, num_tokens: int, num_threads: int) -> int:
        """See `AttentionLayer`: queries, keys and values, what they make; a head in panels for each thread."""
        num_queries, num_keys, _ = self._split
        num_vectors = sum(self._split) + num_queries + 2 * min(num_threads, num_keys)
        return num_tokens * num_vectors * self._head_dim

    def compress(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """See `AttentionLayer`: every head needs the whole rows."""
        return hidden_RH

    def __call__(self, hidden_SH: torch.Tensor, angles: Angles, sequences: list[Sequence]) -> torch.Tensor:
        """See `AttentionLayer`."""
        qkv_SC = self._qkv_HC(hidden_SH)
        if self._qkv_bias_C is not None:
            qkv_SC += self._qkv_bias_C
        self._norm_and_rotate_(qkv_SC, angles)
        out_SH = self._out_CH(self._mix(qkv_SC, sequences))
        return out_SH if self._out_bias_H is None else out_SH.add_(self._out_bias_H)

    def _norm_and_rotate_(self, qkv_SC: torch.Tensor, angles: Angles) -> None:
        num_queries, num_keys, _ = self._split
        if self._norms_D and self._config.rope.dim == self._head_dim:
            self._kernels.norm_and_rotate_(qkv_SC, self._norms_D, angles, (num_queries, num_keys), self._eps)
            return
        heads_SND = qkv_SC.view(len(qkv_SC), sum(self._split), self._head_dim)[:, : num_queries + num_keys]
        if self._norms_D:
            norms_ND = torch.cat([n.expand(num, -1) for n, num in zip(self._norms_D, self._split[:2], strict=True)])
            normed_SND = functional.rms_norm(heads_SND.float(), (self._head_dim,), eps=self._eps)
            heads_SND.copy_(normed_SND * norms_ND)
        self._kernels.rotate_(heads_SND, angles)

    def _mix(self, qkv_SC: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """The heads' outputs side by side, [S, C]."""
        num_tokens = len(qkv_SC)
        heads_SND = qkv_SC.view(num_tokens, sum(self._split), self._head_dim)
        query_SND, key_SGD, value_SGD = torch.split(heads_SND, self._split, dim=1)
        mixed = []
        for sequence in sequences:
            rows = sequence.rows
            key_GnD, value_GnD = sequence.extend(self._layer_idx, key_SGD[rows], value_SGD[rows])
            mixed.append(self._kernels.attend(query_SND[rows], key_GnD, value_GnD))
        padding = num_tokens - sum(map(len, mixed))
        if padding or not mixed:
            mixed.append(query_SND.new_zeros(padding, *query_SND.shape[1:]))
        mixed_SND = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return mixed_SND.flatten(1)


def attend(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the last n of m tokens, [n, N, V], V at most D: each sees all before it, and itself."""
    num_new, num_heads, head_dim = query_nND.shape
    if query_nND.dtype is torch.float32 and num_new * num_heads >= PANEL_QUERIES * len(key_GmD):
        return attend_in_panels(query_nND, key_GmD, value_GmV)
    width = value_GmV.shape[-1]
    value_GmD = functional.pad(value_GmV, (0, head_dim - width)) if width < head_dim else value_GmV
    return _attend_fused(query_nND, key_GmD, value_GmD)[..., :width]


def _attend_fused(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmD: torch.Tensor) -> torch.Tensor:
    """Through torch, in any type."""
    query_1NnD, key_1GmD, value_1GmD = query_nND.transpose(0, 1)[None], key_GmD[None], value_GmD[None]
    num_new = len(query_nND)
    num_past = key_GmD.shape[1] - num_new
    if num_past and num_new > 1:
        return _attend_chunk(query_1NnD, key_1GmD, value_1GmD, num_past)[0].transpose(0, 1)
    out_1NnD = functional.scaled_dot_product_attention(
        query_1NnD, key_1GmD, value_1GmD, is_causal=num_new > 1, enable_gqa=True
    )
    return out_1NnD[0].transpose(0, 1)


def _attend_chunk(
    query_1NnD: torch.Tensor, key_1GmD: torch.Tensor, value_1GmD: torch.Tensor, num_past: int
) -> torch.Tensor:
    """All of the past and, causally, the chunk itself, each normalised alone; their sums of exponentials merge them.

    A mask would cost n * m numbers and the time of what it hides (docs/log.md).
    """
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    past, own = slice(num_past), slice(num_past, None)
    past_1NnD, past_logsumexp_1Nn = attention(query_1NnD, key_1GmD[:, :, past], value_1GmD[:, :, past])
    own_1NnD, own_logsumexp_1Nn = attention(query_1NnD, key_1GmD[:, :, own], value_1GmD[:, :, own], is_causal=True)
    share_1Nn1 = torch.sigmoid(past_logsumexp_1Nn - own_logsumexp_1Nn)[..., None]
    merged_1NnD: torch.Tensor = torch.lerp(own_1NnD.float(), past_1NnD.float(), share_1Nn1)
    return merged_1NnD.to(query_1NnD.dtype)
