"""A prefill instance of Ray actors on dies: `python -m tests.ascend.instance_on_npu CONFIG.json`, over torch-npu.

Prints its tokens and what each actor saw as JSON, to the file that ASAP_FOUND names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch

from asap_ray.actors.attention_group import AttentionGroup
from asap_ray.actors.placement import running_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.served_model import served_model
from asap_ray.config import ServeConfig, config_from
from tests.ascend.prompts import batch


def seen(actor: Any) -> dict[str, Any]:
    """In an actor: which dies are its own, what it has had there by torch-npu, and where attention's tensors are."""
    own = {"dies": os.environ["ASCEND_RT_VISIBLE_DEVICES"], "bytes": torch.npu.max_memory_allocated()}
    if not isinstance(actor, AttentionGroup):
        return own
    stage = actor._rank._attention.stage
    assert stage._storage
    tensors = [*vars(stage._layers[0]).values(), stage._norm_H, stage._storage.pages("key_value")]
    return own | {"devices": sorted({str(each.device) for each in tensors if isinstance(each, torch.Tensor)})}


async def answer(config: ServeConfig) -> dict[str, Any]:
    """Start, ask, look, stop."""
    instance = PrefillInstance(config, served_model(config))
    await instance.start()
    try:
        tokens = [token async for some, _ in instance.run(0, batch()) for token in some]
        names = running_names(config.name)
        actors = [ray.get_actor(name, namespace="serve") for name in names]
        return {
            "token_ids": [token.token_id for token in tokens],
            "logprobs": [token.logprob for token in tokens],
            "seen": dict(zip(names, await asyncio.gather(*(a.__ray_call__.remote(seen) for a in actors)), strict=True)),
        }
    finally:
        await instance.stop()


def main(config: ServeConfig) -> None:
    """On a cluster of its own."""
    ray.init(
        num_cpus=4,
        resources={"NPU": config.parallel.num_devices},
        object_store_memory=96 << 20,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
    )
    try:
        Path(os.environ["ASAP_FOUND"]).write_text(json.dumps(asyncio.run(answer(config))))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(config_from(json.loads(Path(sys.argv[1]).read_text())))
