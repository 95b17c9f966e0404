"""One way through the layers: the requests of a batch, their rows, and the keys and values they keep."""

# Shapes: L decoder layers, G key-value heads of this rank, n tokens of one request, D head_dim,
#         R rows of this rank, H hidden, V vocabulary.

from __future__ import annotations

from dataclasses import dataclass

import torch

from asap_ray.batch import Request, Token
from asap_ray.models.sampler import Sampler, token_of


class Cache:
    """Keys and values of one prompt on one rank, with room for all of it and its answer; touched as it fills."""

    def __init__(self, num_layers: int, num_kv_heads: int, num_tokens: int, head_dim: int, dtype: torch.dtype) -> None:
        self._kept_L2GnD = torch.empty(num_layers, 2, num_kv_heads, num_tokens, head_dim, dtype=dtype)
        self._num_filled_L = [0] * num_layers

    def extend(
        self, layer_idx: int, num_cached: int, key_GnD: torch.Tensor, value_GnD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep n more tokens of a layer behind the first `num_cached`; all so far, [G, n, D]."""
        assert self._num_filled_L[layer_idx] == num_cached, "a chunk runs ahead of the one before it"
        stop = self._num_filled_L[layer_idx] = num_cached + key_GnD.shape[1]
        kept_2GnD = self._kept_L2GnD[layer_idx, :, :, :stop]
        kept_2GnD[0, :, num_cached:] = key_GnD
        kept_2GnD[1, :, num_cached:] = value_GnD
        return kept_2GnD[0], kept_2GnD[1]


@dataclass(slots=True)
class Sequence:
    """One request inside a pass: which rows are its own, and what it keeps for the tokens to come."""

    rows: slice  # of the batch
    num_cached: int = 0  # tokens before these rows
    cache: Cache | None = None  # None: a whole prompt after which nothing comes

    @property
    def num_rows(self) -> int:
        """Tokens in this pass."""
        return int(self.rows.stop - self.rows.start)

    def extend(
        self, layer_idx: int, key_nGD: torch.Tensor, value_nGD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all tokens so far, [G, n, D], the given ones last."""
        key_GnD, value_GnD = key_nGD.transpose(0, 1), value_nGD.transpose(0, 1)
        if self.cache is None:
            return key_GnD, value_GnD
        return self.cache.extend(layer_idx, self.num_cached, key_GnD, value_GnD)


@dataclass(slots=True)
class Answer:
    """One request, from its prompt or a chunk of it to its last token."""

    request: Request
    sampler: Sampler
    sequence: Sequence
    num_generated: int = 0

    def extend(self, token_id: int, logits_V: torch.Tensor) -> Token:
        """Count one more token, and describe it."""
        self.num_generated += 1
        return token_of(self.request, token_id, self.num_generated, logits_V)


@dataclass(slots=True)
class Pass:
    """One way through the layers: of prompts or chunks at first, then of one token a request."""

    answers: list[Answer]
    angles: tuple[torch.Tensor, torch.Tensor]  # cosines and sines
    residual_RH: torch.Tensor  # float32
    num_rows: int  # of this rank that are no padding
    layer_idx: int = 0

    @property
    def sequences(self) -> list[Sequence]:
        """The rows of each request."""
        return [answer.sequence for answer in self.answers]

    @property
    def sampling(self) -> list[Answer]:
        """The requests that get a token at the end: not those with chunks to come."""
        return [answer for answer in self.answers if not answer.request.future_tokens]
