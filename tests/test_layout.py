"""Table 2 at the paper's configuration, by its own formulas and as we lay it out."""

from __future__ import annotations

import dataclasses

import pytest

from asap_ray import _native
from asap_ray.layout import FLAG_BYTES, Layout, areas, layout_of, table_2
from asap_ray.spec import NUM_SLOTS, Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType, paper


def with_combine(combine: Combine) -> Layout:
    """The paper's instance with one way of combining."""
    instance = paper()
    return layout_of(dataclasses.replace(instance, prefill=dataclasses.replace(instance.prefill, combine=combine)))


def bytes_of(layout: Layout) -> dict[tuple[str, str], int]:
    """Our areas by device and purpose."""
    return {(area.device, area.what): area.num_bytes for area in areas(layout)}


def test_table_2_by_the_papers_formulas() -> None:
    """64 KB of expert IDs, 0.9 GB of results, 14 GB (15.0 decimal) of tokens; the rest under 1 KB."""
    table = {(area.device, area.what): area.num_bytes for area in table_2(paper())}

    assert table == {
        ("attention", "expert IDs"): 64 * 1024,
        ("attention", "expert results"): 939_524_096,
        ("attention", "bitmap"): 2,
        ("moe", "token metadata"): 256,
        ("moe", "tokens"): 4 * 7168 * 8 * 32 * 1024 * 2,
        ("moe", "bitmaps"): 2,
    }


def test_per_expert_results_are_the_papers() -> None:
    """K rows a token come back to attention: 0.9 GB."""
    assert bytes_of(with_combine(Combine.PER_EXPERT))["attention", "expert results"] == 939_524_096


@pytest.mark.parametrize("combine", Combine)
def test_a_token_travels_once_a_device(combine: Combine) -> None:
    """So the MoE token area is 1/K of the paper's, whatever the combine."""
    assert bytes_of(with_combine(combine))["moe", "tokens"] == 4 * 7168 * 32 * 1024 * 2


def test_flags_and_metadata_are_small() -> None:
    """Flags a few KB; row indices and weights, 8 B a token and expert, are 8.4 MB beside 1.9 GB of rows."""
    sizes = bytes_of(with_combine(Combine.REDUCED))

    assert sizes["moe", "flags"] == (2 + 4 * NUM_SLOTS) * FLAG_BYTES
    assert round(sizes["moe", "token metadata"] / 1e6, 1) == 8.4
    assert sizes["attention", "flags and headers"] < 4096 + 2 * FLAG_BYTES


def test_fewer_devices_than_experts_a_token_need_fewer_results() -> None:
    """`reduced` returns min(K, E) rows a token: with two devices a quarter of per_expert's."""
    instance = Instance(
        model=ModelSpec(num_layers=1, hidden=64, num_experts=16, top_k=8),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=2),
        prefill=PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=1, row_type=RowType.FLOAT32),
    )

    assert bytes_of(layout_of(instance))["attention", "expert results"] == 2 * 64 * 64 * 4


@pytest.mark.parametrize("moe_devices", [1, 3, 7, 16, 65, 256])
@pytest.mark.parametrize("tp", [1, 3, 64])
def test_native_code_accepts_every_layout(moe_devices: int, tp: int) -> None:
    """What Python computes passes the checks of csrc, which know alignments and ends."""
    instance = Instance(
        model=ModelSpec(num_layers=1, hidden=5, num_experts=256, top_k=3),
        parallel=ParallelSpec(dp_groups=2, tp=tp, moe_devices=moe_devices),
        prefill=PrefillSpec(max_tokens=101, solo_tokens=50, inflection_tokens=1, row_type=RowType.FLOAT16),
    )
    layout = layout_of(instance)
    attention = _native.SharedBuffer.create("layout-attention", layout.attention_bytes)
    moe = _native.SharedBuffer.create("layout-moe", layout.moe_bytes)

    comm = _native.AttentionComm(
        layout=_native.Layout(**dataclasses.asdict(layout)),
        buffer=attention,
        moe_buffers=[moe] * moe_devices,
        expert_of_place=instance.placed.expert_of_place,
        dp_group=1,
        tp_rank=tp - 1,
        epoch=1,
        row_type=RowType.FLOAT16,
        combine=Combine.REDUCED,
    )

    assert isinstance(comm, _native.AttentionComm)
