"""Serve a checkpoint on one Ray of its own: prompts at /, decode at /decode. `python pair_on_ray.py DIRECTORY PORT`."""

from __future__ import annotations

import sys

from ray import serve

from asap_ray.actors.app import build_app
from asap_ray.actors.decode_app import build_decode_app
from asap_ray.actors.running import running, wait_for_signal
from asap_ray.config import ServeConfig, config_to
from asap_ray.spec import KVCacheSpec, ParallelSpec, PrefillSpec

BLOCK_BYTES = 3 * 2 * 2 * 16 * 4 * 16
"""Of the tiny model: layers, keys and values, heads, width, bytes of a number, tokens of a block."""

NUM_DECODE_BLOCKS = 80
"""Room for one longest answer to a longest prompt."""

LEASE_S = 3.0


def config_of(directory: str, name: str, parallel: ParallelSpec, kv_cache: KVCacheSpec) -> ServeConfig:
    """Of one of the two."""
    return ServeConfig(
        model=directory,
        name=name,
        parallel=parallel,
        prefill=PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0),
        kv_cache=kv_cache,
        lease_s=LEASE_S,
    )


def main(directory: str, port: str) -> None:
    """Until SIGTERM: a group of two ranks and two MoE devices, and an undivided model with blocks of another size."""
    prefill = config_of(
        directory, "prefill", ParallelSpec(dp_groups=1, tp=2, moe_devices=2), KVCacheSpec(block_size=16)
    )
    pages = KVCacheSpec(block_size=32, memory_bytes=NUM_DECODE_BLOCKS * BLOCK_BYTES)
    decode = config_of(directory, "decode", ParallelSpec(dp_groups=1, tp=1, moe_devices=1), pages)
    with running(prefill, build_app(config_to(prefill)), "127.0.0.1", int(port)):
        serve.run(build_decode_app(config_to(decode)), name="decode", route_prefix="/decode")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        wait_for_signal()


if __name__ == "__main__":
    main(*sys.argv[1:])
