"""What runs on the first host: an instance over all of them, prompts, and what becomes of them when one is cut off.

    python -m tests.fabric.drive MODEL NUM_HOSTS

Talks with the test in lines of JSON: says what it saw, and waits for a line where it says `ready`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

import ray
import torch

from asap_ray.actors.placement import group_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.batch import Batch, Request
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.fabric.hosts import PORT, SUBNET

DEADLINE_S = 5.0
PROMPTS = [list(range(5, 5 + length)) for length in (1, 30, 120, 200)]


def say(**what: Any) -> None:
    """To the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def ask(instance: PrefillInstance, group: int, number: int) -> int:
    """The first token of a prompt."""
    ids = torch.tensor(PROMPTS[number], dtype=torch.int32)
    prompt = Request(request_id=f"r{number}", num_tokens=len(ids), arrival_s=0.0, token_ids=ids.numpy().tobytes())
    tokens = [token async for made, _ in instance.run(group, Batch((prompt,))) for token in made]
    return tokens[0].token_id


async def answers(instance: PrefillInstance, group: int) -> list[int]:
    """To all prompts."""
    return [await ask(instance, group, number) for number in range(len(PROMPTS))]


async def until_it_fails(instance: PrefillInstance, group: int) -> dict[str, Any]:
    """How a group that is cut off, or whose device is, stops to answer: what is said, and after how long at most."""
    while True:
        began_s = time.monotonic()
        try:
            await ask(instance, group, 1)
        except AsapError as error:
            return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began_s}


async def watched(instance: PrefillInstance) -> None:
    """Look after the devices; the test hears of every change."""
    try:
        async for change in instance.watch():
            say(change=change.group, lost=change.lost)
    except AsapError as error:
        say(given_up=f"{type(error).__name__}: {error}")


async def main(model: str, num_hosts: int) -> None:
    """See above."""
    config = ServeConfig(
        model=model,
        parallel=ParallelSpec(dp_groups=num_hosts - 1, tp=1, moe_devices=1),
        prefill=PrefillSpec(
            max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=DEADLINE_S
        ),
        start_timeout_s=90.0,
    )
    ray.init(address=f"{SUBNET}.1:{PORT}", log_to_driver=False)
    while ray.cluster_resources().get("NPU", 0) < num_hosts:
        await asyncio.sleep(0.2)
    instance = PrefillInstance(config)
    await instance.start()
    nodes = {name: ranks[0].node for name, ranks in instance.registered.items()}
    say(nodes=nodes, tokens=[await answers(instance, group) for group in range(num_hosts - 1)])
    watching = asyncio.create_task(watched(instance))
    lost, rest = json.loads(await asyncio.to_thread(sys.stdin.readline))
    say(failed=await until_it_fails(instance, group_names(config).index(lost)))
    say(rest=await answers(instance, group_names(config).index(rest)))
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await instance.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
