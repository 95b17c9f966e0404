"""Token embedding and language-model head, split over the vocabulary among the ranks of a group."""

# Shapes: S tokens, H hidden, V vocabulary rows of this rank, B requests, T ranks.

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from asap_ray.models.config import ModelConfig
from asap_ray.models.weights import Shard
from asap_ray.protocol import Collective

BLOCK: Final = 4096
"""Rows of the head widened to float32 at a time; they stay in cache."""

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"


class Vocabulary:
    """Rank j's rows of both matrices; one matrix serves as both where they are tied."""

    def __init__(self, shard: Shard, config: ModelConfig, collective: Collective) -> None:
        self._collective = collective
        self._vocab_size = config.vocab_size
        self._num_rows = -(-config.vocab_size // shard.size)  # equal parts, so that logits can be gathered
        self._first = shard.rank * self._num_rows
        self._embedding_VH = self._read(shard, EMBEDDING, config)
        self._head_VH = self._embedding_VH if config.tie_word_embeddings else self._read(shard, HEAD, config)

    def _read(self, shard: Shard, name: str, config: ModelConfig) -> torch.Tensor:
        mapped = shard.checkpoint.view(name, (config.vocab_size, config.hidden))
        return shard.own(mapped[self._first : self._first + self._num_rows])

    def embed(self, token_ids_S: torch.Tensor) -> torch.Tensor:
        """This rank's S/T rows of the embedding, float32; ids on the host, S a multiple of T."""
        if self._collective.size == 1:
            return self._rows(token_ids_S)
        local_S = token_ids_S - self._first
        inside_S = (local_S >= 0) & (local_S < len(self._embedding_VH))
        rows_SH = self._rows(local_S.where(inside_S, 0))
        rows_SH.masked_fill_(~inside_S[:, None].to(rows_SH.device), 0)
        embedded: torch.Tensor = self._collective.reduce_scatter(rows_SH)
        return embedded

    def _rows(self, local_S: torch.Tensor) -> torch.Tensor:
        """Of the embedding, float32, where the weights lie."""
        return functional.embedding(local_S.to(self._embedding_VH.device), self._embedding_VH).float()

    def logits(self, hidden_BH: torch.Tensor) -> torch.Tensor:
        """Logits over the whole vocabulary, float32 whatever the weights: two in bfloat16 are often equal."""
        logits_VB = hidden_BH.new_zeros(self._num_rows, len(hidden_BH))
        for start in range(0, len(self._head_VH), BLOCK):
            block_VH = self._head_VH[start : start + BLOCK]
            logits_VB[start : start + len(block_VH)] = block_VH.float() @ hidden_BH.T
        gathered_VB: torch.Tensor = self._collective.all_gather(logits_VB)
        return gathered_VB[: self._vocab_size].T
