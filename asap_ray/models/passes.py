"""One way through the layers: the requests of a batch, their rows, and the keys and values they keep."""

# Shapes: L decoder layers, G heads kept by this rank, n tokens of one request, D their width,
#         R rows of this rank, H hidden, V vocabulary.

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch

from asap_ray.batch import Request, Token
from asap_ray.kvcache.kinds import CacheKind
from asap_ray.kvcache.storage import PagedRows
from asap_ray.models.rope import Angles
from asap_ray.models.sampler import Sampler, token_of


class Cache:
    """What attention keeps of one prompt on one rank, with room for all of it and its answer; touched as it fills.

    Args:
        kinds: what a token leaves: keys and values, or a latent that stands for both.
        num_layers: decoder layers.
        num_tokens: of prompt and answer.
        dtype: the compute type.
        device: where attention computes.
    """

    def __init__(
        self, kinds: Many[CacheKind], num_layers: int, num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._kept = [
            torch.empty(num_layers, kind.heads, num_tokens, width, dtype=dtype, device=device)
            for kind in kinds
            for width in kind.parts
        ]
        self._num_filled_L = [0] * num_layers

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of what is kept: [L, G, n, D] each."""
        return tuple(tuple(kept_LGnD.shape) for kept_LGnD in self._kept)

    def extend(self, layer_idx: int, num_cached: int, *new_GnD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keep n more tokens of a layer behind the first `num_cached`; all so far, [G, n, D] each."""
        assert self._num_filled_L[layer_idx] == num_cached, "a chunk runs ahead of the one before it"
        stop = self._num_filled_L[layer_idx] = num_cached + new_GnD[0].shape[1]
        kept = tuple(kept_LGnD[layer_idx, :, :stop] for kept_LGnD in self._kept)
        for kept_GnD, each_GnD in zip(kept, new_GnD, strict=True):
            kept_GnD[:, num_cached:] = each_GnD
        return kept


@dataclass(slots=True)
class Sequence:
    """One request inside a pass: which rows are its own, and what it keeps for the tokens to come."""

    rows: slice  # of the batch
    num_cached: int = 0  # tokens before these rows
    cache: Cache | PagedRows | None = None  # None: a whole prompt after which nothing comes

    @property
    def num_rows(self) -> int:
        """Tokens in this pass."""
        return int(self.rows.stop - self.rows.start)

    def extend(self, layer_idx: int, *new_nGD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What attention keeps of all tokens so far, [G, n, D] each, the given ones last."""
        new_GnD = tuple(each_nGD.transpose(0, 1) for each_nGD in new_nGD)
        return new_GnD if self.cache is None else self.cache.extend(layer_idx, self.num_cached, *new_GnD)


@dataclass(slots=True)
class Answer:
    """One request, from its prompt or a chunk of it to its last token."""

    request: Request
    sampler: Sampler
    sequence: Sequence
    num_generated: int = 0

    def extend(self, token_id: int, logits_V: torch.Tensor, *, is_wanted: bool) -> Token:
        """Count one more token, and describe it: the last one if no more are wanted."""
        self.num_generated += 1
        token = token_of(self.request, token_id, self.num_generated, logits_V)
        return token if is_wanted or token.finish_reason else replace(token, finish_reason="abort")


@dataclass(slots=True)
class Pass:
    """One way through the layers: of prompts or chunks at first, then of one token a request."""

    answers: list[Answer]
    angles: Angles
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
