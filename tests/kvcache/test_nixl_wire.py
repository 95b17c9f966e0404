"""What vLLM's NixlConnector says, and what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from asap_ray.errors import ConfigError, Unavailable
from asap_ray.kvcache.kinds import CacheSpec, grouped_query, indexer, latent
from asap_ray.kvcache.nixl_wire import Notice, Region, asked_rank, handshake, meta_request, read_notice
from asap_ray.spec import RowType

SPEC = CacheSpec(num_layers=2, block_size=64, kinds=(grouped_query(2, 64),), element=RowType.FLOAT32)
REGION = Region(engine_id="e", agent=b"agent", address=1 << 40, num_blocks=10, spec=SPEC)
PAGE = 2 * 64 * 2 * 64 * 4
"""Heads, tokens, keys and values, width, bytes."""

THEIRS: dict[str, Any] = {
    "engine_id": "theirs",
    "agent_metadata": b"theirs",
    "block_size": 128,
    "block_lens": [2 * PAGE, 2 * PAGE],
    "region_names": ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"],
    "attn_backend_name": "CPU_ATTN",
}


def packed(**changes: Any) -> bytes:
    """A decode instance's handshake; some of its fields."""
    payload = {"compatibility_hash": "hash", "agent_metadata_bytes": msgpack.packb(THEIRS | changes)}
    return bytes(msgpack.packb(payload))


@pytest.mark.parametrize(
    ("message", "notice"),
    [
        (b"HB:cmpl-1-0,cmpl-2-0", Notice("heartbeat", ("cmpl-1-0", "cmpl-2-0"))),
        (b"cmpl-1-0:1", Notice("pulled", ("cmpl-1-0",))),
        (b"a:b:2", Notice("pulled", ("a:b",), 2)),
        (b"cmpl-1-0:0", None),
        (b"cmpl-1-0", None),
        (b"PUSH_REG:\xff", None),
    ],
)
def test_notifications(message: bytes, notice: Notice | None) -> None:
    """Heartbeats name requests; an end names one and how many ranks say so; the rest is not for us."""
    assert read_notice(message) == notice


def test_the_question_is_vllms() -> None:
    """A tuple of a name, a pipeline rank and a tensor-parallel rank."""
    assert msgpack.unpackb(meta_request(3)) == [b"get_meta_msg", 0, 3]
    assert asked_rank(meta_request(3)) == 3


@pytest.mark.parametrize("message", [b"", b"\xc1", msgpack.packb("get_meta_msg"), msgpack.packb((b"other", 0, 0))])
def test_another_question_is_refused(message: bytes) -> None:
    """With its bytes."""
    with pytest.raises(ConfigError, match="does not ask for a handshake"):
        asked_rank(message)


def test_the_handshake_is_theirs_with_our_pages() -> None:
    """Hash and names as they say; one region a layer, each behind the one before."""
    reply = msgpack.unpackb(handshake(packed(), REGION))
    fields = msgpack.unpackb(reply["agent_metadata_bytes"])

    assert reply["compatibility_hash"] == "hash"
    assert {name: fields[name] for name in ("engine_id", "agent_metadata", "region_names", "block_size")} == {
        "engine_id": "e",
        "agent_metadata": b"agent",
        "region_names": THEIRS["region_names"],
        "block_size": 64,
    }
    assert fields["kv_caches_base_addr"] == [1 << 40, (1 << 40) + 10 * PAGE]
    assert (fields["block_lens"], fields["region_num_blocks"]) == ([PAGE, PAGE], [10, 10])
    assert (fields["kv_cache_layout"], fields["attn_backend_name"]) == ("LBHNC", "FLASH_ATTN")


def test_a_page_of_latents_is_one_row_a_token() -> None:
    """576 numbers: what vLLM's decode instances keep of MLA, in the same order."""
    region = replace(REGION, spec=replace(SPEC, kinds=(latent(512, 64),)))

    fields = msgpack.unpackb(msgpack.unpackb(handshake(packed(), region))["agent_metadata_bytes"])

    assert fields["block_lens"] == [SPEC.block_size * 576 * SPEC.element.num_bytes] * 2


@pytest.mark.parametrize(
    ("theirs", "region", "message"),
    [
        (packed(block_lens=[PAGE]), REGION, "has 1 layers, we have 2"),
        (packed(block_size=96), REGION, "block_size=96 of the decode instance is no multiple of ours, 64"),
        (
            packed(),
            replace(REGION, spec=replace(SPEC, kinds=(latent(512, 64), indexer(128)))),
            "of latent and indexer: vLLM",
        ),
    ],
)
def test_pages_they_cannot_read_are_refused(theirs: bytes, region: Region, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(Unavailable, match=message):
        handshake(theirs, region)
