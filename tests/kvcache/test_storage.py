"""Pages: what goes in behind a prefix comes out in order, for every kind of cache."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import CacheKind, CacheSpec, grouped_query, indexer, latent
from asap_ray.kvcache.storage import PagedRows, Storage
from asap_ray.spec import RowType

KINDS = (grouped_query(num_kv_heads=2, head_dim=3), latent(kv_lora_rank=4, rope_dim=2), indexer(head_dim=5))
SPEC = CacheSpec(num_layers=2, block_size=4, kinds=KINDS, element=RowType.FLOAT32)


def rows_of(kind: CacheKind, num_tokens: int, seed: int = 0) -> list[torch.Tensor]:
    """Random rows of a kind, [G, n, D] each part."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(kind.heads, num_tokens, part, generator=generator) for part in kind.parts]


def rows_of_all(num_tokens: int, seed: int = 0) -> list[torch.Tensor]:
    """Of every kind, in their order."""
    return [part for kind in KINDS for part in rows_of(kind, num_tokens, seed)]


def are_equal(actual: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> bool:
    """All of them, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("cuts", [(13,), (1,) * 13, (4, 4, 5), (3, 9, 1), (5, 8)], ids=str)
def test_rows_come_out_as_they_went_in(cuts: tuple[int, ...]) -> None:
    """Of every kind, whatever the passes are that bring them, and wherever the blocks lie."""
    paged = PagedRows(Storage(SPEC, num_blocks=6), table=(5, 0, 3, 2), cached_tokens=0)
    parts = rows_of_all(sum(cuts))
    start = 0
    for num_rows in cuts:
        stop = start + num_rows
        read = paged.extend(1, start, *(part[:, start:stop] for part in parts))
        assert are_equal(read, (part[:, :stop] for part in parts))
        start = stop


def test_layers_do_not_mix() -> None:
    """Each has pages of its own."""
    paged = PagedRows(Storage(SPEC, num_blocks=2), table=(1,), cached_tokens=0)
    wrote = [rows_of_all(2, seed=layer_idx) for layer_idx in range(2)]
    for layer_idx, parts in enumerate(wrote):
        paged.extend(layer_idx, 0, *parts)

    assert all(
        are_equal(paged.extend(layer_idx, 2, *(part[:, :0] for part in parts)), parts)
        for layer_idx, parts in enumerate(wrote)
    )


def test_requests_with_one_prefix_read_the_same_block() -> None:
    """The second goes on behind what the first has written."""
    storage = Storage(SPEC, num_blocks=4)
    prefix, rest = rows_of_all(4), rows_of_all(2, seed=1)
    PagedRows(storage, table=(3, 1), cached_tokens=0).extend(0, 0, *prefix)

    read = PagedRows(storage, table=(3, 2), cached_tokens=4).extend(0, 4, *rest)

    assert are_equal(read, (torch.cat(both, dim=1) for both in zip(prefix, rest, strict=True)))


def test_what_comes_out_is_contiguous() -> None:
    """As attention is fastest with."""
    paged = PagedRows(Storage(SPEC, num_blocks=4), table=(3, 1), cached_tokens=0)
    paged.extend(0, 0, *rows_of_all(3))

    assert all(part.is_contiguous() for part in paged.extend(0, 3, *rows_of_all(3)))


def test_a_prompt_without_a_prefix_is_not_read_back() -> None:
    """It attends to the rows it has."""
    paged, rows = PagedRows(Storage(SPEC, num_blocks=4), table=(3, 1), cached_tokens=0), rows_of_all(6)

    assert all(out is row for out, row in zip(paged.extend(0, 0, *rows), rows, strict=True))


def test_two_storages_over_the_same_bytes_have_the_same_pages() -> None:
    """What one process writes another one finds."""
    memory = torch.zeros(4 * SPEC.block_bytes, dtype=torch.uint8)
    ours, theirs = (Storage(SPEC, 4, memory) for _ in range(2))
    PagedRows(ours, table=(2, 0), cached_tokens=0).extend(1, 0, *rows_of_all(7))

    assert all(torch.equal(ours.pages(kind.name), theirs.pages(kind.name)) for kind in KINDS)


def test_kinds_fill_their_bytes_one_behind_the_other() -> None:
    """No byte is wasted, and none is two kinds'."""
    memory = torch.zeros(4 * SPEC.block_bytes, dtype=torch.uint8)
    storage = Storage(SPEC, 4, memory)
    for kind in KINDS:
        storage.pages(kind.name).add_(1)

    assert memory.view(torch.float32).unique().tolist() == [1]


def test_a_page_of_grouped_query_attention_is_what_vllm_pulls() -> None:
    """[G, P, 2 D], contiguous, keys before values."""
    storage, rows = Storage(SPEC, num_blocks=4), rows_of_all(4)
    PagedRows(storage, table=(2,), cached_tokens=0).extend(1, 0, *rows)
    page_GPW = storage.pages(KINDS[0].name)[1, 2]

    assert page_GPW.is_contiguous()
    assert torch.equal(page_GPW, torch.cat(rows[:2], dim=-1))


def test_a_chunk_must_not_run_ahead() -> None:
    """Rows behind a gap would be attended to before they are written."""
    paged = PagedRows(Storage(SPEC, num_blocks=4), table=(3, 1), cached_tokens=0)

    with pytest.raises(AssertionError, match="runs ahead"):
        paged.extend(0, 2, *rows_of_all(2))


def test_a_table_of_another_cache_is_not_taken() -> None:
    """It would write where no page is."""
    with pytest.raises(AssertionError, match="block 4 of a table; there are 4"):
        PagedRows(Storage(SPEC, num_blocks=4), table=(3, 4), cached_tokens=0)


def test_a_token_of_deepseek_v3_2_takes_86_kilobytes() -> None:
    """61 layers of a latent of 512, a rotary key of 64 and an indexer key of 128, in 16 bits."""
    spec = CacheSpec(num_layers=61, block_size=64, kinds=(latent(512, 64), indexer(128)), element=RowType.BFLOAT16)

    assert (spec.token_bytes, spec.num_blocks(10**10)) == (85_888, 1819)


def test_memory_without_room_for_a_block_is_refused() -> None:
    """By both sizes."""
    with pytest.raises(ConfigError, match="100 bytes for the KV cache hold no block; one of 4 tokens takes 736"):
        SPEC.num_blocks(100)


def test_a_kind_without_rows_is_refused() -> None:
    """By its name."""
    with pytest.raises(ConfigError, match="indexer: heads=1"):
        indexer(head_dim=0)


def test_two_kinds_of_one_name_are_refused() -> None:
    """They would share pages."""
    with pytest.raises(ConfigError, match="must differ in name: indexer, indexer"):
        CacheSpec(num_layers=1, block_size=4, kinds=(indexer(1), indexer(2)), element=RowType.FLOAT32)
