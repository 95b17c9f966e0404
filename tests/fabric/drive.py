"""What runs on the first host: an instance over all of them behind its HTTP routes, and a replay against it.

    python -m tests.fabric.drive MODEL NUM_HOSTS

Talks with the test in lines of JSON: each says one thing it saw. Where it says `unplug`, it waits for a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ray
import torch

from asap_ray.actors.endpoints import http_endpoint
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Batch, Request
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError
from asap_ray.spec import ParallelSpec, PrefillSpec
from asap_ray.workload.client import Plan, replay
from asap_ray.workload.shaping import Shaping
from asap_ray.workload.trace_file import bundled_trace, read_trace
from tests.decode.conftest import served_of
from tests.decode.pair import listening
from tests.fabric.hosts import PORT, SUBNET

DEADLINE_S = 5.0
START_S = 60.0
PROMPTS = [list(range(5, 5 + length)) for length in (1, 30, 120, 200)]
TRACE = Shaping(duration_s=60.0, rate_factor=3.0, cap_tokens=200)
"""A minute of the bundled conversations in 20 s, cut to what the tiny model takes."""


def say(**what: Any) -> None:
    """To the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def answers(instance: PrefillInstance, group: int) -> list[int]:
    """The first token of every prompt, from one group."""
    tokens = []
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor(prompt, dtype=torch.int32).numpy().tobytes()
        request = Request(request_id=f"r{number}", num_tokens=len(prompt), arrival_s=0.0, token_ids=ids)
        async for made, _ in instance.run(group, Batch((request,))):
            tokens += [token.token_id for token in made]
    return tokens


async def replayed(url: str) -> dict[int, int]:
    """How many requests of the trace ended with which HTTP status."""
    async with http_endpoint(url) as endpoint:
        requests = TRACE.apply(read_trace(bundled_trace()))
        plan = Plan(requests=requests, vocab_size=endpoint.model.vocab_size or 0, timeout_s=2 * START_S)
        results = await replay(plan, endpoint.target, lambda _: None)
    return dict(Counter(result.status for result in results))


async def looked_after(instance: PrefillInstance, service: PrefillService) -> None:
    """As the frontend does; the test hears of it."""
    try:
        async for change in instance.watch():
            say(lost=change.group, reason=change.lost)
            if change.lost:
                service.lose(change.group, change.lost)
            else:
                service.restore(change.group)
    except AsapError as error:
        say(given_up=f"{type(error).__name__}: {error}")
        service.give_up(str(error))


async def unplugged(name: str) -> None:
    """Have the test unplug the host of a device."""
    say(unplug=name)
    await asyncio.to_thread(sys.stdin.readline)


async def play(instance: PrefillInstance, service: PrefillService) -> None:
    """The whole story."""
    watching = asyncio.create_task(looked_after(instance, service))
    groups = range(instance.num_groups)
    places = {name: ranks[0].node.split()[0] for name, ranks in instance.registered.items()}
    say(places=places, tokens=[await answers(instance, group) for group in groups])
    victim = next(group for group in groups if places[f"asap:attention:{group}"] != "host1")
    async with listening(service) as url:
        say(whole=await replayed(url))
        cut = asyncio.create_task(replayed(url))
        await asyncio.sleep(2.0)  # in the middle of it
        await unplugged(f"asap:attention:{victim}")
        say(rest=[await answers(instance, group) for group in groups if group != victim])
        say(cut=await cut, victim=victim)
        await watching  # nobody can start the group again: its host had the only other NPU
        say(after=await replayed(url))


async def connect(num_hosts: int) -> None:
    """To the cluster, once all of it is there."""
    async with asyncio.timeout(2 * START_S):
        while not ray.is_initialized():
            with contextlib.suppress(ConnectionError):
                ray.init(address=f"{SUBNET}.1:{PORT}", log_to_driver=False)
        while ray.cluster_resources().get("NPU", 0) < num_hosts:
            await asyncio.sleep(0.2)


async def main(model: str, num_hosts: int) -> None:
    """See above."""
    limits = PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=DEADLINE_S)
    degrees = ParallelSpec(dp_groups=num_hosts - 1, tp=1, moe_devices=1)
    config = ServeConfig(model=model, parallel=degrees, prefill=limits, start_timeout_s=START_S)
    await connect(num_hosts)
    served = served_of(Path(model))
    instance = PrefillInstance(config, served)
    await instance.start()
    service = PrefillService(config, served, instance)
    await play(instance, service)
    await service.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
