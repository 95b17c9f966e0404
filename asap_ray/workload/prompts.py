"""Token ids for a trace, which records lengths and shared blocks but no text."""

from __future__ import annotations

from typing import Final

import numpy as np

from asap_ray.workload.trace import TraceRequest

BLOCK_STREAM: Final = 2
TAIL_STREAM: Final = 3
"""Middle words of the seeds: tokens of shared blocks, and of what no block covers."""


def prompt_ids(request: TraceRequest, index: int, vocab_size: int, seed: int) -> list[int]:
    """The prompt of request number `index`: exactly `input_length` ids in 0..vocab_size - 1.

    Equal `hash_ids` give equal blocks, so prompts share exactly the prefixes that the trace says they
    share. Tokens beyond the blocks (all of them, where a trace has no ids) belong to this request alone.
    """
    ids: list[int] = []
    for k, hash_id in enumerate(request.hash_ids):
        end = min(round((k + 1) * request.block_tokens), request.input_length)
        ids += _draw([seed, BLOCK_STREAM, hash_id], end - len(ids), vocab_size)
    return ids + _draw([seed, TAIL_STREAM, index], request.input_length - len(ids), vocab_size)


def _draw(seed: list[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The first tokens of a seed's own sequence; a shorter draw is a prefix of a longer one."""
    if num_tokens <= 0:
        return []
    ids: list[int] = np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist()
    return ids
