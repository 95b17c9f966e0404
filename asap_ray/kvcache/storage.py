"""The tensors behind the blocks of one rank: rows go in behind a prefix, and come out side by side."""

# Shapes: L layers, N blocks, G heads of a kind, P tokens of a block, W elements of a row, D of one of its parts,
#         R = N * G * P rows of a layer, B blocks of one request, C = B * P tokens they have room for, n tokens of one
#         pass, m tokens of a request so far.

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from asap_ray.kvcache.kinds import CacheKind, CacheSpec


class Storage:
    """Pages of every kind, [L, N, G, P, W]: a layer's page of a block is contiguous, so one read hands it off.

    With key and value side by side, a page of grouped-query attention is what vLLM's decode instances pull
    ([G, P, 2 D]); MLA's is [P, W], as G is 1. Memory is touched as blocks fill.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, memory: torch.Tensor | None = None) -> None:
        """Lay pages out, one kind behind the other.

        Args:
            spec: what a token leaves.
            num_blocks: N.
            memory: `num_blocks * spec.block_bytes` bytes, uint8, where others may read them; None: some of its own.
        """
        self.spec = spec
        self.num_blocks = num_blocks
        if memory is None:
            memory = torch.empty(num_blocks * spec.block_bytes, dtype=torch.uint8)
        self._device = memory.device
        self._pages: dict[str, torch.Tensor] = {}
        self._parts: dict[str, list[torch.Tensor]] = {}  # views of the pages, [L, R, D]
        elements = memory.view(getattr(torch, spec.element))  # its values are torch's names
        shapes = [(spec.num_layers, num_blocks, kind.heads, spec.block_size, kind.width) for kind in spec.kinds]
        each = torch.split(elements, [*map(math.prod, shapes)])
        for kind, shape, own in zip(spec.kinds, shapes, each, strict=True):
            pages_LNGPW = self._pages[kind.name] = own.view(shape)
            self._parts[kind.name] = list(torch.split(pages_LNGPW.flatten(1, 3), list(kind.parts), dim=-1))

    def pages(self, name: str) -> torch.Tensor:
        """All pages of a kind, [L, N, G, P, W], for a transport to register."""
        return self._pages[name]

    def places(self, kind: CacheKind, table: Sequence[int]) -> torch.Tensor:
        """Which rows of a layer are those of each token that a table has room for, [G, C] int64, where pages are."""
        block_B11 = torch.tensor(table, dtype=torch.int64)[:, None, None]
        head_G1, offset_P = torch.arange(kind.heads)[:, None], torch.arange(self.spec.block_size)
        place_BGP = (block_B11 * kind.heads + head_G1) * self.spec.block_size + offset_P
        return place_BGP.transpose(0, 1).flatten(1).to(self._device)

    def write(self, name: str, layer_idx: int, place_Gn: torch.Tensor, rows_GnD: Sequence[torch.Tensor]) -> None:
        """Put each part of n rows of a layer into their places."""
        for part_LRD, part_GnD in zip(self._parts[name], rows_GnD, strict=True):
            part_LRD[layer_idx].index_copy_(0, place_Gn.flatten(), part_GnD.flatten(0, 1))

    def read(self, name: str, layer_idx: int, place_Gm: torch.Tensor) -> list[torch.Tensor]:
        """Each part of m rows of a layer, [G, m, D], contiguous."""
        place = place_Gm.flatten()
        return [
            part_LRD[layer_idx].index_select(0, place).view(*place_Gm.shape, part_LRD.shape[-1])
            for part_LRD in self._parts[name]
        ]


class PagedRows:
    """What one request keeps on one rank, in the blocks of its table, some of which a prefix hit has filled."""

    def __init__(self, storage: Storage, table: Sequence[int], cached_tokens: int) -> None:
        assert max(table) < storage.num_blocks, f"block {max(table)} of a table; there are {storage.num_blocks}"
        self._storage = storage
        self._places = [storage.places(kind, table) for kind in storage.spec.kinds]  # [G, C] each
        self._num_filled_L = [cached_tokens] * storage.spec.num_layers

    def extend(self, layer_idx: int, num_cached: int, *new_GnD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keep n more tokens of a layer behind the first `num_cached`; all so far, [G, m, D] each.

        Parts come in the order of the kinds and go out in it: what was given if that is all there is, else read back.
        """
        assert self._num_filled_L[layer_idx] == num_cached, "a chunk runs ahead of the one before it"
        stop = self._num_filled_L[layer_idx] = num_cached + new_GnD[0].shape[1]
        waiting, kept = iter(new_GnD), []
        for kind, place_GC in zip(self._storage.spec.kinds, self._places, strict=True):
            self._storage.write(
                kind.name, layer_idx, place_GC[:, num_cached:stop], [*itertools.islice(waiting, len(kind.parts))]
            )
            if num_cached:
                kept += self._storage.read(kind.name, layer_idx, place_GC[:, :stop])
        return tuple(kept) if num_cached else new_GnD
