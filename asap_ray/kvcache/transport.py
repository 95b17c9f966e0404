"""How pages come from a prefill instance to a decode instance: the seam, and the copy that any host memory needs."""

# Shapes: G heads of a kind, n tokens, D elements of a part.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from asap_ray.errors import Unavailable
from asap_ray.kvcache.kinds import CacheKind
from asap_ray.kvcache.storage import Storage

Source_contra = TypeVar("Source_contra", contravariant=True)
"""Where the pages of an engine lie, in a transport's own terms: a description of each of its ranks."""


class Transport(Protocol[Source_contra]):
    """A way to the pages of another engine; its other end is the `Storage` it was made with."""

    def pull(self, source: Source_contra, table: Sequence[int], into: Sequence[int], num_tokens: int) -> None:
        """Copy the first `num_tokens` tokens of the source's blocks `table` into the blocks `into` of this side.

        All layers and kinds, and the heads of all ranks. It returns when all of it is here.

        Raises:
            Unavailable: the source is gone, or its pages are not those of this side's model; says which.
        """


def copy_tokens(
    ranks: Sequence[Storage], table: Sequence[int], local: Storage, into: Sequence[int], num_tokens: int
) -> None:
    """Copy tokens out of the pages of an engine's T ranks into those of an undivided model.

    Heads are divided over ranks, or the same on several; the first that has one gives it. Blocks may be of another
    size there, and elements of another type.

    Raises:
        Unavailable: see `Transport`.
    """
    for storage in ranks:
        _check(storage, table, num_tokens)
    if not local.spec.num_layers == ranks[0].spec.num_layers:
        raise Unavailable(f"pages of {ranks[0].spec.num_layers} layers; this model has {local.spec.num_layers}")
    for number, kind in enumerate(local.spec.kinds):
        into_Gn = local.places(kind, into)[:, :num_tokens]
        for storage, theirs, ours in _owners(ranks, number, kind):
            from_Gn = storage.places(storage.spec.kinds[number], table)[theirs, :num_tokens]
            for layer_idx in range(local.spec.num_layers):
                rows_GnD = storage.read(kind.name, layer_idx, from_Gn)
                dtype = local.pages(kind.name).dtype
                local.write(kind.name, layer_idx, into_Gn[ours], [part_GnD.to(dtype) for part_GnD in rows_GnD])


def _check(storage: Storage, table: Sequence[int], num_tokens: int) -> None:
    if not all(0 <= block < storage.num_blocks for block in table):
        raise Unavailable(f"blocks {min(table)}..{max(table)} of a cache that has {storage.num_blocks}")
    if num_tokens > len(table) * storage.spec.block_size:
        raise Unavailable(f"{len(table)} blocks of {storage.spec.block_size} tokens; {num_tokens} were to be in them")


def _owners(ranks: Sequence[Storage], number: int, kind: CacheKind) -> Iterator[tuple[Storage, list[int], list[int]]]:
    """Each rank that is to give heads of a kind, which of its own, and which of this side's they are."""
    wanted = {head: ours for ours, head in enumerate(kind.ids)}
    for storage in ranks:
        their = storage.spec.kinds[number] if number < len(storage.spec.kinds) else None
        if their is None or (their.name, their.parts) != (kind.name, kind.parts):
            raise Unavailable(f"pages of {their}; this model has {kind}")
        given = [(theirs, wanted.pop(head)) for theirs, head in enumerate(their.ids) if head in wanted]
        if given:
            yield storage, [theirs for theirs, _ in given], [ours for _, ours in given]
    if wanted:
        raise Unavailable(f"no rank has {kind.name} heads {sorted(wanted)}")
