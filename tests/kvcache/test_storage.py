"""Pages: what goes in behind a prefix comes out in order, for every kind of cache."""

from __future__ import annotations

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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("cuts", [(13,), (1,) * 13, (4, 4, 5), (3, 9, 1), (5, 8)], ids=str)
def test_rows_come_out_as_they_went_in(kind: CacheKind, cuts: tuple[int, ...]) -> None:
    """Whatever the passes are that bring them, and wherever the blocks lie."""
    paged = PagedRows(Storage(SPEC, num_blocks=6), table=(5, 0, 3, 2), cached_tokens=0)
    parts = rows_of(kind, sum(cuts))
    start = 0
    for num_rows in cuts:
        stop = start + num_rows
        read = paged.extend(kind.name, 1, start, *(part[:, start:stop] for part in parts))
        assert all(torch.equal(out, part[:, :stop]) for out, part in zip(read, parts, strict=True))
        start = stop


def test_layers_and_kinds_do_not_mix() -> None:
    """Each has pages of its own."""
    paged = PagedRows(Storage(SPEC, num_blocks=2), table=(1,), cached_tokens=0)
    wrote = [(kind, layer_idx, rows_of(kind, 2, seed=layer_idx)) for kind in KINDS for layer_idx in range(2)]
    for kind, layer_idx, parts in wrote:
        paged.extend(kind.name, layer_idx, 0, *parts)
    nothing = {kind.name: [torch.empty(kind.heads, 0, part) for part in kind.parts] for kind in KINDS}
    for kind, layer_idx, parts in wrote:
        read = paged.extend(kind.name, layer_idx, 2, *nothing[kind.name])
        assert all(torch.equal(out, part) for out, part in zip(read, parts, strict=True))


def test_requests_with_one_prefix_read_the_same_block() -> None:
    """The second goes on behind what the first has written."""
    storage, kind = Storage(SPEC, num_blocks=4), KINDS[0]
    prefix, rest = rows_of(kind, 4), rows_of(kind, 2, seed=1)
    PagedRows(storage, table=(3, 1), cached_tokens=0).extend(kind.name, 0, 0, *prefix)
    read = PagedRows(storage, table=(3, 2), cached_tokens=4).extend(kind.name, 0, 4, *rest)

    expected = [torch.cat(both, dim=1) for both in zip(prefix, rest, strict=True)]
    assert all(torch.equal(out, part) for out, part in zip(read, expected, strict=True))


def test_what_comes_out_is_contiguous() -> None:
    """As attention is fastest with."""
    kind = KINDS[0]
    paged = PagedRows(Storage(SPEC, num_blocks=4), table=(3, 1), cached_tokens=0)

    assert all(part.is_contiguous() for part in paged.extend(kind.name, 0, 0, *rows_of(kind, 6)))


def test_a_page_of_grouped_query_attention_is_what_vllm_pulls() -> None:
    """[G, P, 2 D], contiguous, keys before values."""
    storage, kind = Storage(SPEC, num_blocks=4), KINDS[0]
    key_GnD, value_GnD = rows_of(kind, 4)
    PagedRows(storage, table=(2,), cached_tokens=0).extend(kind.name, 1, 0, key_GnD, value_GnD)
    page_GPW = storage.pages(kind.name)[1, 2]

    assert page_GPW.is_contiguous()
    assert torch.equal(page_GPW, torch.cat((key_GnD, value_GnD), dim=-1))


def test_a_chunk_must_not_run_ahead() -> None:
    """Rows behind a gap would be attended to before they are written."""
    kind = KINDS[0]
    paged = PagedRows(Storage(SPEC, num_blocks=4), table=(3, 1), cached_tokens=0)

    with pytest.raises(AssertionError, match="runs ahead"):
        paged.extend(kind.name, 0, 2, *rows_of(kind, 2))


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
