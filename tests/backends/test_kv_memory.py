"""How many blocks a rank has room for."""

from __future__ import annotations

from typing import Any

import pytest

from asap_ray.backends.kv_memory import NODE_SHARE, fit_blocks, node_bytes
from asap_ray.backends.place import HostPlace
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import CacheSpec, latent
from asap_ray.spec import KVCacheSpec, ParallelSpec, PrefillSpec, RowType

SPEC = CacheSpec(num_layers=9, block_size=64, kinds=(latent(200, 50),), element=RowType.FLOAT32)  # 9 kB a token
TAKEN = {"weights": 30_000_000, "buffers": 20_000_000}


def config_of(memory_bytes: int | None = None) -> ServeConfig:
    """Four devices; the longest pass takes 18.43 MB of the cache."""
    limits: Any = {"max_tokens": 2048, "solo_tokens": 512, "inflection_tokens": 512}
    return ServeConfig(
        model="m",
        parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2),
        prefill=PrefillSpec(**limits),
        kv_cache=KVCacheSpec(memory_bytes=memory_bytes),
    )


def test_the_cache_gets_what_is_left() -> None:
    """50 of 160 MB are taken; two elevenths of the rest are for reading back: 90 MB of blocks of 576 kB."""
    assert fit_blocks(config_of(), SPEC, 160_000_000, TAKEN) == 156


def test_the_cache_gets_what_was_asked_for() -> None:
    """If it is there."""
    assert fit_blocks(config_of(20_000_000), SPEC, 150_000_000, TAKEN) == 34


def test_without_a_number_a_device_has_its_share_of_the_node() -> None:
    """Four of them share four fifths."""
    share = int(NODE_SHARE * node_bytes()) // 4

    assert HostPlace().total_bytes(config_of()) == share


def test_a_longest_pass_that_does_not_fit_is_refused() -> None:
    """With what the memory is for, and what would help."""
    with pytest.raises(
        ConfigError,
        match=r"the memory of a device is 60\.0 - weights 30\.0 - buffers 20\.0 = 10\.0 MB for the KV cache of an "
        r"attention rank, of which it may use 8\.2; one pass of max_tokens=2048 needs 18\.4: lower max_tokens",
    ):
        fit_blocks(config_of(), SPEC, 60_000_000, TAKEN)


def test_weights_alone_may_be_too_much() -> None:
    """Nothing is left then, and less than nothing is not used."""
    with pytest.raises(ConfigError, match=r"= -10\.0 MB for the KV cache of an attention rank, of which it may use 0"):
        fit_blocks(config_of(), SPEC, 40_000_000, TAKEN)


def test_more_than_is_left_is_refused() -> None:
    """Rather than found out when the cache is full."""
    with pytest.raises(ConfigError, match=r"= 100\.0 MB for .*; kv_cache\.memory_bytes=100000001 is more"):
        fit_blocks(config_of(100_000_001), SPEC, 150_000_000, TAKEN)
