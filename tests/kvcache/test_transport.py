"""Pages of an engine's ranks, copied into those of an undivided model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asap_ray.errors import Unavailable
from asap_ray.kvcache.kinds import CacheKind, CacheSpec, grouped_query, indexer, latent
from asap_ray.kvcache.storage import Storage
from asap_ray.kvcache.transport import copy_tokens
from asap_ray.spec import RowType

SPEC = CacheSpec(num_layers=2, block_size=4, kinds=(grouped_query(4, 3),), element=RowType.FLOAT32)
TABLE = (5, 0, 3)


def rank_with(*head_ids: int, block_size: int = 4) -> Storage:
    """Pages of some key-value heads; a number tells its layer, head, part and token."""
    kind = grouped_query(len(head_ids), 3, head_ids)
    storage = Storage(replace(SPEC, kinds=(kind,), block_size=block_size), num_blocks=6)
    fill(storage, kind, 3 * 4)
    return storage


def fill(storage: Storage, kind: CacheKind, num_tokens: int) -> None:
    """Write every token of `TABLE`."""
    place_Gn = storage.places(kind, TABLE)[:, :num_tokens]
    for layer_idx in range(storage.spec.num_layers):
        parts = expected(kind, layer_idx, num_tokens)
        storage.write(kind.name, layer_idx, place_Gn, [part.to(storage.pages(kind.name).dtype) for part in parts])


def expected(kind: CacheKind, layer_idx: int, num_tokens: int) -> list[torch.Tensor]:
    """What the tokens of a layer are."""
    head_G11 = torch.tensor(kind.ids)[:, None, None] * 16.0
    token_n1 = torch.arange(num_tokens)[:, None] * 1.0
    return [
        (head_G11 + token_n1 + 64 * layer_idx + 128 * part).expand(-1, -1, width)
        for part, width in enumerate(kind.parts)
    ]


def pulled(local: Storage, kind: CacheKind, into: tuple[int, ...], num_tokens: int) -> bool:
    """Whether all layers of so many tokens are what was written."""
    place_Gn = local.places(kind, into)[:, :num_tokens]
    return all(
        torch.equal(part, wanted)
        for layer_idx in range(local.spec.num_layers)
        for part, wanted in zip(
            local.read(kind.name, layer_idx, place_Gn), expected(kind, layer_idx, num_tokens), strict=True
        )
    )


@pytest.mark.parametrize("heads", [((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1,), (2,), (3,)), ((0, 0, 1), (1, 2, 3))])
@pytest.mark.parametrize("num_tokens", [1, 4, 11])
def test_heads_of_all_ranks_are_put_together(heads: tuple[tuple[int, ...], ...], num_tokens: int) -> None:
    """However they are divided, and where ranks have one twice or share one."""
    local = Storage(SPEC, num_blocks=8)
    copy_tokens([rank_with(*ids) for ids in heads], TABLE, local, (7, 1, 2), num_tokens)

    assert pulled(local, SPEC.kinds[0], (7, 1, 2), num_tokens)


def test_blocks_may_be_of_another_size() -> None:
    """Tokens are copied, not pages."""
    local = Storage(replace(SPEC, block_size=2), num_blocks=8)
    copy_tokens([rank_with(0, 1, 2, 3)], TABLE, local, (7, 1, 2, 5, 4), 9)

    assert pulled(local, SPEC.kinds[0], (7, 1, 2, 5, 4), 9)


def test_elements_may_be_of_another_type() -> None:
    """The numbers of this test fit into 16 bits."""
    kinds = (latent(4, 2), indexer(5))
    remote = Storage(CacheSpec(num_layers=1, block_size=4, kinds=kinds, element=RowType.BFLOAT16), num_blocks=6)
    for kind in kinds:
        fill(remote, kind, 12)
    local = Storage(CacheSpec(num_layers=1, block_size=4, kinds=kinds, element=RowType.FLOAT32), num_blocks=3)
    copy_tokens([remote, remote], TABLE, local, (0, 2, 1), 10)

    assert all(pulled(local, kind, (0, 2, 1), 10) for kind in kinds)


@pytest.mark.parametrize(
    ("remote", "table", "num_tokens", "message"),
    [
        (rank_with(0, 1, 2, 3), (5, 6), 5, "blocks 5..6 of a cache that has 6"),
        (rank_with(0, 1, 2, 3), (5, -1), 5, "blocks -1..5 of a cache that has 6"),
        (rank_with(0, 1, 2, 3), (5,), 5, "1 blocks of 4 tokens; 5 were to be in them"),
        (rank_with(0, 1), (5,), 3, r"no rank has key_value heads \[2, 3\]"),
        (Storage(replace(SPEC, num_layers=3), 6), (5,), 3, "pages of 3 layers; this model has 2"),
        (Storage(replace(SPEC, kinds=(latent(4, 2),)), 6), (5,), 3, "pages of CacheKind.*latent.*; this model has"),
        (Storage(replace(SPEC, kinds=(grouped_query(4, 5),)), 6), (5,), 3, r"\(5, 5\).*; this model has"),
    ],
)
def test_pages_of_another_model_are_refused(
    remote: Storage, table: tuple[int, ...], num_tokens: int, message: str
) -> None:
    """What a peer says of itself is not trusted."""
    with pytest.raises(Unavailable, match=message):
        copy_tokens([remote], table, Storage(SPEC, 6), (0, 1), num_tokens)
