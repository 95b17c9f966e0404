"""What vLLM's NixlConnector (0.32) and a prefill instance say to each other: a handshake, and notifications.

The handshake's fields and their meaning were found by trial (docs/kvcache.md). A decode instance wants to see its own
settings in it, of which only it knows some; so its own handshake is asked for first, and filled anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from asap_ray.errors import ConfigError, Unavailable
from asap_ray.kvcache.kinds import CacheSpec

GET_META: Final = b"get_meta_msg"
LAYOUT: Final = "LBHNC"
"""Layer, block, heads, tokens, width: that of `Storage`."""

PLAIN_BACKEND: Final = "FLASH_ATTN"
"""Keys before values, nothing packed; a decode instance whose kernels want another order repacks what it has read."""

_HEARTBEAT: Final = "HB:"
_COUNT: Final = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Notice:
    """What a decode instance says once a transfer is under way."""

    verb: str  # "heartbeat" or "pulled"
    request_ids: tuple[str, ...]
    num_consumers: int = 1  # ranks of the decode side that each say so


def read_notice(message: bytes) -> Notice | None:
    """A notification; None for what nobody here has to know."""
    text = message.decode(errors="replace")
    if text.startswith(_HEARTBEAT):
        return Notice("heartbeat", tuple(text.removeprefix(_HEARTBEAT).split(",")))
    request_id, _, number = text.rpartition(":")
    return Notice("pulled", (request_id,), int(number)) if _COUNT.fullmatch(number) else None


def meta_request(tp_rank: int = 0) -> bytes:
    """Asks a side channel for the handshake of one rank."""
    return bytes(msgpack.packb((GET_META, 0, tp_rank)))


def asked_rank(message: bytes) -> int:
    """Whose handshake is asked for.

    Raises:
        ConfigError: it is not such a question.
    """
    try:
        verb, _, tp_rank = msgpack.unpackb(message)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise ConfigError(f"{message[:80]!r} does not ask for a handshake") from None
    if verb not in (GET_META, GET_META.decode()) or type(tp_rank) is not int or tp_rank < 0:
        raise ConfigError(f"{message[:80]!r} does not ask for a handshake")
    return tp_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The pages of one rank as an agent of NIXL has registered them."""

    engine_id: str
    agent: bytes  # its metadata
    address: int  # of the first page
    num_blocks: int
    spec: CacheSpec


def handshake(theirs: bytes, region: Region) -> bytes:
    """A decode instance's own handshake, told of our pages instead: one region a layer.

    Raises:
        Unavailable: its caches are not what ours are.
        ConfigError: it is no handshake.
    """
    try:
        payload = msgpack.unpackb(theirs)
        fields = msgpack.unpackb(payload["agent_metadata_bytes"])
        _check(fields, region)
        return bytes(msgpack.packb(payload | {"agent_metadata_bytes": msgpack.packb(fields | _fields(region))}))
    except (LookupError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ConfigError(f"the decode instance's handshake is not understood: {error!r}") from None


def _fields(region: Region) -> dict[str, Any]:
    spec, num_blocks = region.spec, region.num_blocks
    page_bytes, layers = spec.block_bytes // spec.num_layers, range(spec.num_layers)
    return {
        "engine_id": region.engine_id,
        "agent_metadata": region.agent,
        "device_id": 0,
        "num_blocks": num_blocks,
        "kv_caches_base_addr": [region.address + layer * num_blocks * page_bytes for layer in layers],
        "block_lens": [page_bytes for _ in layers],
        "block_strides": [page_bytes for _ in layers],
        "kv_cache_layout": LAYOUT,
        "block_size": spec.block_size,
        "attn_backend_name": PLAIN_BACKEND,
        "region_num_blocks": [num_blocks for _ in layers],
        "region_group_ids": [0 for _ in layers],
        "region_mem_types": ["DRAM" for _ in layers],
    }


def _check(theirs: Mapping[str, Any], region: Region) -> None:
    spec = region.spec
    if len(spec.kinds) > 1:
        kinds = " and ".join(kind.name for kind in spec.kinds)
        raise Unavailable(f"pages of {kinds}: vLLM keeps indexer keys in FP8, with scales")
    if len(theirs["block_lens"]) != spec.num_layers:
        raise Unavailable(f"the decode instance has {len(theirs['block_lens'])} layers, we have {spec.num_layers}")
    if theirs["block_size"] % spec.block_size:
        raise Unavailable(
            f"block_size={theirs['block_size']} of the decode instance is no multiple of ours, {spec.block_size}"
        )
