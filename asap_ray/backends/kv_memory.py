"""How many blocks of KV cache an attention rank has room for: what weights, buffers and a pass leave."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import CacheSpec

NODE_SHARE: Final = 0.8
"""Of a node's memory, for the devices of one instance, equal parts; the rest is the system's, Ray's, the frontend's."""

READ_LAYERS: Final = 2
"""Layers' worth of the pages that reading them back may take."""

_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of a container: control groups of either version."""


def node_bytes() -> int:
    """Memory of this node, or of the container this process is in if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, _LIMITS):
        if path.exists() and (limit := path.read_text().strip()).isdigit():  # "max": there is none
            limits.append(int(limit))
    return min(limits)


def process_bytes() -> int:
    """What this process has to itself: once a model is loaded, its weights above all."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, "Linux says so"
    return int(found[1]) * 1024


def fit_blocks(config: ServeConfig, spec: CacheSpec, device: int, taken: Mapping[str, int]) -> int:
    """How many blocks a rank has room for; pages that are not written cost nothing.

    A prefix is read back one layer at a time, and latents become the keys and values of at least one head, which are
    about as much: of what is left two layers' share stays free.

    Args:
        config: of the instance.
        spec: what the rank keeps of a token.
        device: bytes of its memory.
        taken: what else takes memory, and how many bytes of it.

    Raises:
        ConfigError: not one longest pass fits, or not what was asked for; with the arithmetic.
    """
    left = device - sum(taken.values())
    asked, max_tokens = config.kv_cache.memory_bytes, config.prefill.max_tokens
    room = max(0, left) * spec.num_layers // (spec.num_layers + READ_LAYERS) if asked is None else asked
    terms = " - ".join((_mb(device), *(f"{what} {_mb(num_bytes)}" for what, num_bytes in taken.items())))
    arithmetic = f"the memory of a device is {terms} = {_mb(left)} MB for the KV cache of an attention rank"
    if asked is not None and asked > left:
        raise ConfigError(f"{arithmetic}; kv_cache.memory_bytes={asked} is more")
    needed = -(-max_tokens // spec.block_size) * spec.block_bytes
    if room < needed:
        raise ConfigError(
            f"{arithmetic}, of which it may use {_mb(room)}; one pass of max_tokens={max_tokens} needs {_mb(needed)}: "
            "lower max_tokens, or raise device_memory_bytes or kv_cache.memory_bytes"
        )
    return spec.num_blocks(room)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f}"
