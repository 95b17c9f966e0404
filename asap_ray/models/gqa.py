"""Grouped-query attention of one layer, the heads of one rank; several requests a batch, none sees another."""

# Shapes: S tokens of the batch, n tokens of one request, H hidden, D head_dim,
#         N query heads of this rank, G its key-value heads.

from __future__ import annotations

import torch
from torch.nn import functional

from asap_ray.errors import ConfigError
from asap_ray.models.config import QwenConfig
from asap_ray.models.fused import norm_and_rotate_
from asap_ray.models.passes import Sequence
from asap_ray.models.weights import Shard


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
        query_norm_D, key_norm_D = (shard.vector(f"{prefix}.{letter}_norm.weight", config.head_dim) for letter in "qk")
        self._norms_D = query_norm_D, key_norm_D

    def __call__(
        self, hidden_SH: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], sequences: list[Sequence]
    ) -> torch.Tensor:
        """Attend within each sequence; this rank's part of the output sum, [S, H].

        Rows beyond the last sequence are padding and only cost time.
        """
        qkv_SC = hidden_SH @ self._qkv_HC
        if self._qkv_bias_C is not None:
            qkv_SC += self._qkv_bias_C
        norm_and_rotate_(qkv_SC, self._norms_D, angles, (self._split[0], self._split[1]), self._eps)
        out_SH = self._mix(qkv_SC, sequences) @ self._out_CH
        return out_SH if self._out_bias_H is None else out_SH.add_(self._out_bias_H)

    def _mix(self, qkv_SC: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """The heads' outputs side by side, [S, C]."""
        num_tokens = len(qkv_SC)
        heads_SND = qkv_SC.view(num_tokens, sum(self._split), self._head_dim)
        query_SND, key_SGD, value_SGD = torch.split(heads_SND, self._split, dim=1)
        mixed = []
        for sequence in sequences:
            rows = sequence.rows
            key_GnD, value_GnD = sequence.extend(self._layer_idx, key_SGD[rows], value_SGD[rows])
            mixed.append(attend(query_SND[rows], key_GnD, value_GnD))
        padding = num_tokens - sum(map(len, mixed))
        if padding or not mixed:
            mixed.append(query_SND.new_zeros(padding, *query_SND.shape[1:]))
        mixed_SND = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return mixed_SND.flatten(1)


def attend(query_nND: torch.Tensor, key_GmD: torch.Tensor, value_GmD: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the last n of m tokens, [n, N, D]: each sees all before it, and itself."""
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
