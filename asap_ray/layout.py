"""Table 2: every offset and size of the shared buffers, computed here and nowhere else.

MoE device buffer              Attention rank buffer
  flags: arrivals, credits       flags: replies
  bitmap (i, slot): T bits       bitmap (slot): E bits in words of 64
  region (i, j):                 reply header (slot, e)
    headers of the slots         result rows of slot 0 | slot 1
    row_idx of slot 0 | slot 1
    weights of slot 0 | slot 1
    rows    of slot 0 | slot 1

Where two slots share an area, each owns a half; a solo batch (3.3.2) is in slot 0 and may fill both.
C++ receives `Layout` as a plain struct; kernels add no offsets of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asap_ray.spec import NUM_SLOTS, Combine, Instance

FLAG_BYTES: Final = 512
"""Each flag word has its own 512 B, the granularity at which an Ascend core may write without a neighbour."""

HEADER_BYTES: Final = 64
"""epoch u64, sequence u64, layer i32, num_rows i32, num_pairs i32, reply_offset i32, then zeros."""

BITMAP_WORD_BITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Geometry, then offsets and strides in bytes. Offsets inside a region are relative to the region."""

    dp_groups: int
    tp: int
    moe_devices: int
    num_layers: int
    num_experts: int
    num_places: int  # of experts, over all MoE devices
    top_k: int
    hidden: int
    row_bytes: int  # hidden * element size, as rows travel
    max_local_experts: int  # places of a device
    slot_rows: int  # rows one slot's half holds; a solo batch may use 2 * slot_rows
    slot_pairs: int  # (row, expert) pairs one slot's half holds
    slot_results: int  # result rows one slot's half holds

    moe_arrivals: int  # doorbell: an attention rank has set a bit
    moe_credits: int  # doorbell: the device has cleared a word
    moe_bitmaps: int  # word (i, slot) at (i * NUM_SLOTS + slot) * FLAG_BYTES
    moe_regions: int  # region (i, j) at (i * tp + j) * region_bytes
    region_bytes: int
    region_headers: int  # header of a slot at slot * header_bytes, rows per local expert behind it
    header_bytes: int  # HEADER_BYTES + int32 per local expert, rounded up
    region_row_idx: int  # int32 per pair, grouped by local expert
    region_weights: int  # float32 per pair
    region_rows: int
    moe_bytes: int

    attention_replies: int  # doorbell: a MoE device has set a bit
    attention_bitmaps: int  # word w of a slot at (slot * bitmap_words + w) * FLAG_BYTES
    bitmap_words: int
    attention_headers: int  # reply header (slot, e) at (slot * moe_devices + e) * HEADER_BYTES
    attention_results: int
    attention_bytes: int


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def layout_of(instance: Instance) -> Layout:
    """Lay out both kinds of buffer for one instance; the same on every device."""
    model, parallel, prefill = instance.model, instance.parallel, instance.prefill
    max_local_experts = max(len(instance.experts_of(e)) for e in range(parallel.moe_devices))
    rank_rows = -(-prefill.max_tokens // parallel.tp)
    slot_rows = -(-rank_rows // NUM_SLOTS)
    reduced = prefill.combine is Combine.REDUCED
    sizes = {
        "dp_groups": parallel.dp_groups,
        "tp": parallel.tp,
        "moe_devices": parallel.moe_devices,
        "num_layers": model.num_layers,
        "num_experts": model.num_experts,
        "num_places": instance.placed.num_places,
        "top_k": model.top_k,
        "hidden": model.hidden,
        "row_bytes": model.hidden * prefill.row_type.num_bytes,
        "max_local_experts": max_local_experts,
        "slot_rows": slot_rows,
        "slot_pairs": slot_rows * min(model.top_k, max_local_experts),
        "slot_results": slot_rows * (min(model.top_k, parallel.moe_devices) if reduced else model.top_k),
    }
    return Layout(**sizes, **_moe_buffer(sizes), **_attention_buffer(sizes))


def _moe_buffer(sizes: dict[str, int]) -> dict[str, int]:
    """Flags, bitmaps, then the regions one after the other."""
    header_bytes = _round_up(HEADER_BYTES + 4 * sizes["max_local_experts"], HEADER_BYTES)
    pairs_bytes = NUM_SLOTS * sizes["slot_pairs"] * 4
    row_idx = _round_up(NUM_SLOTS * header_bytes, FLAG_BYTES)
    weights = _round_up(row_idx + pairs_bytes, FLAG_BYTES)
    rows = _round_up(weights + pairs_bytes, FLAG_BYTES)
    region_bytes = _round_up(rows + NUM_SLOTS * sizes["slot_rows"] * sizes["row_bytes"], FLAG_BYTES)
    bitmaps = 2 * FLAG_BYTES
    regions = bitmaps + sizes["dp_groups"] * NUM_SLOTS * FLAG_BYTES
    return {
        "moe_arrivals": 0,
        "moe_credits": FLAG_BYTES,
        "moe_bitmaps": bitmaps,
        "moe_regions": regions,
        "region_bytes": region_bytes,
        "region_headers": 0,
        "header_bytes": header_bytes,
        "region_row_idx": row_idx,
        "region_weights": weights,
        "region_rows": rows,
        "moe_bytes": regions + sizes["dp_groups"] * sizes["tp"] * region_bytes,
    }


def _attention_buffer(sizes: dict[str, int]) -> dict[str, int]:
    """Flag, bitmaps, reply headers, then the result rows of both slots."""
    bitmap_words = -(-sizes["moe_devices"] // BITMAP_WORD_BITS)
    headers = FLAG_BYTES + NUM_SLOTS * bitmap_words * FLAG_BYTES
    results = _round_up(headers + NUM_SLOTS * sizes["moe_devices"] * HEADER_BYTES, FLAG_BYTES)
    return {
        "attention_replies": 0,
        "attention_bitmaps": FLAG_BYTES,
        "bitmap_words": bitmap_words,
        "attention_headers": headers,
        "attention_results": results,
        "attention_bytes": results + NUM_SLOTS * sizes["slot_results"] * sizes["row_bytes"],
    }


@dataclass(frozen=True, slots=True)
class Area:
    """One line of Table 2."""

    device: str
    what: str
    num_bytes: int


def table_2(instance: Instance) -> tuple[Area, ...]:
    """The paper's own formulas, to set beside ours: K copies of a row each way, and no metadata of rows."""
    model, parallel, prefill = instance.model, instance.parallel, instance.prefill
    element = prefill.row_type.num_bytes
    copies = model.top_k * prefill.max_tokens
    return (
        Area("attention", "expert IDs", copies // parallel.tp),
        Area("attention", "expert results", model.hidden * copies * element // parallel.tp),
        Area("attention", "bitmap", -(-parallel.moe_devices // 8)),
        Area("moe", "token metadata", parallel.dp_groups * parallel.tp * model.num_experts // parallel.moe_devices),
        Area("moe", "tokens", parallel.dp_groups * model.hidden * copies * element),
        Area("moe", "bitmaps", -(-parallel.dp_groups * parallel.tp // 8)),
    )


def areas(layout: Layout) -> tuple[Area, ...]:
    """What our buffers spend their bytes on."""
    num_regions = layout.dp_groups * layout.tp
    rows_bytes = NUM_SLOTS * layout.slot_rows * layout.row_bytes
    return (
        Area("attention", "flags and headers", layout.attention_results),
        Area("attention", "expert results", layout.attention_bytes - layout.attention_results),
        Area("moe", "flags", layout.moe_regions),
        Area("moe", "token metadata", num_regions * (layout.region_bytes - rows_bytes)),
        Area("moe", "tokens", num_regions * rows_bytes),
    )
