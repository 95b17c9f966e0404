"""Grouped-query attention of one layer, the heads of one rank; several requests a batch, none sees another."""

# Shapes: S tokens of the batch, n tokens of one request, H hidden, D head_dim,
#         N query heads of this rank, G its key-value heads.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from asap_ray.errors import ConfigError
from asap_ray.models.config import QwenConfig
from asap_ray.models.rope import Rotation, rms_norm
from asap_ray.models.weights import Shard


@dataclass(slots=True)
class Sequence:
    """One request inside a pass: which rows are its own, and what it keeps for the tokens to come."""

    rows: slice  # of the batch
    num_cached: int = 0  # tokens before these rows
    cache_L2GnD: torch.Tensor | None = None  # keys and values, with room for the whole answer

    @property
    def num_rows(self) -> int:
        """Tokens in this pass."""
        return int(self.rows.stop - self.rows.start)

    def extend(self, layer_idx: int, key_nGD: torch.Tensor, value_nGD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keys and values of all tokens so far, [G, n, D], the given ones last."""
        key_GnD, value_GnD = key_nGD.transpose(0, 1), value_nGD.transpose(0, 1)
        if self.cache_L2GnD is None:
            return key_GnD, value_GnD
        stop = self.num_cached + len(key_nGD)
        kept_2GnD = self.cache_L2GnD[layer_idx, :, :, :stop]
        kept_2GnD[0, :, self.num_cached :] = key_GnD
        kept_2GnD[1, :, self.num_cached :] = value_GnD
        return kept_2GnD[0], kept_2GnD[1]


def kv_heads_of(config: QwenConfig, query_heads: range) -> list[int]:
    """Key-value heads a rank needs so that its query heads divide evenly over them, in order.

    Where T does not divide the key-value heads some are held by several ranks; where a rank's query
    heads straddle groups unevenly, each gets a copy of its own.
    """
    group = config.num_heads // config.num_kv_heads
    owners = [head // group for head in query_heads]
    distinct = sorted(set(owners))
    share = len(owners) // len(distinct)
    return distinct if owners == [head for head in distinct for _ in range(share)] else owners


def _qkv(shard: Shard, config: QwenConfig, name: str, width: tuple[int, ...]) -> torch.Tensor:
    """Weights or biases of this rank's heads, [C, *width]: queries, then keys, then values; `name` lacks the letter."""
    heads, head_dim = shard.part(config.num_heads), config.head_dim
    kv_heads = kv_heads_of(config, heads)
    parts = []
    for letter, num_heads, own in (
        ("q", config.num_heads, list(heads)),
        ("k", config.num_kv_heads, kv_heads),
        ("v", config.num_kv_heads, kv_heads),
    ):
        mapped = shard.checkpoint.view(name.format(letter), (num_heads * head_dim, *width))
        parts += [mapped[head * head_dim : (head + 1) * head_dim].to(shard.dtype) for head in own]
    return torch.cat(parts)


class GroupedQueryAttention:
    """Weights of one layer on rank j, and the attention they make."""

    def __init__(self, shard: Shard, config: QwenConfig, layer_idx: int) -> None:
        if config.num_heads % shard.size:
            raise ConfigError(f"tp={shard.size} must divide num_attention_heads={config.num_heads}")
        self._layer_idx = layer_idx
        self._head_dim = config.head_dim
        self._eps = config.rms_norm_eps
        prefix, hidden = f"model.layers.{layer_idx}.self_attn", config.hidden
        heads = shard.part(config.num_heads)
        kv_heads = kv_heads_of(config, heads)
        self.num_kv_heads = len(kv_heads)
        self._split = [len(heads), len(kv_heads), len(kv_heads)]
        self._qkv_HC = _qkv(shard, config, f"{prefix}.{{}}_proj.weight", (hidden,)).T.contiguous()
        self._out_CH = shard.row_parallel(f"{prefix}.o_proj.weight", (hidden, config.num_heads * config.head_dim))
        self._qkv_bias_C = self._out_bias_H = None
        if config.attention_bias:
            self._qkv_bias_C = _qkv(shard, config, f"{prefix}.{{}}_proj.bias", ())
        if config.attention_bias and shard.rank == 0:  # partial sums are added up: once is enough
            self._out_bias_H = shard.own(shard.checkpoint.view(f"{prefix}.o_proj.bias", (hidden,)))
        self._query_norm_D = shard.vector(f"{prefix}.q_norm.weight", config.head_dim)
        self._key_norm_D = shard.vector(f"{prefix}.k_norm.weight", config.head_dim)

    def __call__(self, hidden_SH: torch.Tensor, rotation: Rotation, sequences: list[Sequence]) -> torch.Tensor:
        """Attend within each sequence; this rank's part of the output sum, [S, H].

        Rows beyond the last sequence are padding and only cost time.
        """
        qkv_SC = hidden_SH @ self._qkv_HC
        if self._qkv_bias_C is not None:
            qkv_SC += self._qkv_bias_C
        heads_SND = qkv_SC.view(len(hidden_SH), -1, self._head_dim)
        query_SND, key_SGD, value_SGD = torch.split(heads_SND, self._split, dim=1)
        query_SND = rotation.apply(rms_norm(query_SND, self._query_norm_D, self._eps)).to(hidden_SH.dtype)
        key_SGD = rotation.apply(rms_norm(key_SGD, self._key_norm_D, self._eps)).to(hidden_SH.dtype)

        mixed_SND = torch.zeros_like(query_SND)
        for sequence in sequences:
            rows = sequence.rows
            key_GnD, value_GnD = sequence.extend(self._layer_idx, key_SGD[rows], value_SGD[rows])
            mixed_SND[rows] = attend(query_SND[rows], key_GnD, value_GnD)
        out_SH = mixed_SND.flatten(1) @ self._out_CH
        return out_SH if self._out_bias_H is None else out_SH.add_(self._out_bias_H)


def attend(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmD: torch.Tensor) -> torch.Tensor:
    """Softmax attention, [n, N, D]: causal over a whole prompt (n = m), or one new token over all before (n = 1)."""
    query_NnD = query_nND.transpose(0, 1)
    out_1NnD = functional.scaled_dot_product_attention(
        query_NnD[None], key_GmD[None], value_GmD[None], is_causal=query_NnD.shape[1] > 1, enable_gqa=True
    )
    return out_1NnD[0].transpose(0, 1)
