"""A served instance as a replay sees it: over HTTP, or through its Serve handle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from asap_ray.actors.handle_target import HandleTarget
from asap_ray.actors.timeline import read_timeline
from asap_ray.dashboards.looks import Look, samples_of
from asap_ray.errors import ConfigError
from asap_ray.evaluation.watch import ReadLook
from asap_ray.messages import decode
from asap_ray.tracks import Timeline
from asap_ray.workload.client import Target
from asap_ray.workload.http_target import HttpTarget, ServedModel, connect, served_model

CONNECT_S: Final = 30.0
_LOOK_S: Final = 5.0

ReadTimeline = Callable[[float], Awaitable[Timeline]]
"""What every device did in the last so many seconds; raises ConfigError where nobody records."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send prompts, what it serves, and what it says of itself."""

    target: Target
    model: ServedModel
    look: ReadLook
    timeline: ReadTimeline


@contextlib.asynccontextmanager
async def http_endpoint(url: str, key: str = "") -> AsyncIterator[Endpoint]:
    """An OpenAI-compatible server, with its API key if it has one; devices only where it is one of ours."""
    async with connect(url, key) as client:
        model = await served_model(client)

        async def answer(path: str) -> httpx.Response | None:
            try:
                return (await client.get(path, timeout=_LOOK_S)).raise_for_status()
            except httpx.HTTPError:
                return None

        async def look() -> Look:
            metrics, duty = await asyncio.gather(answer("/metrics"), answer("/duty"))
            with contextlib.suppress(ValueError, AttributeError):
                return _look(metrics.text if metrics else "", duty.json() if duty else {})
            return Look(time.monotonic())

        yield Endpoint(HttpTarget(client, model.name), model, look, partial(read_timeline, client))


@contextlib.asynccontextmanager
async def app_endpoint(name: str, address: str) -> AsyncIterator[Endpoint]:
    """A Serve application of the cluster at `address`; prompts go through its handle."""
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        handle = serve.get_app_handle(name)
    except (ConnectionError, ValueError, RayError, RayServeException) as error:
        raise ConfigError(f"no application {name!r} on the cluster at {address!r}: {error}") from None
    try:
        model = ServedModel(**await asyncio.wait_for(handle.describe.remote(), CONNECT_S))
    except TimeoutError:
        raise ConfigError(f"application {name!r} did not answer within {CONNECT_S:g} s") from None

    async def look() -> Look:
        try:
            return _look(*await asyncio.gather(handle.exposition.remote(), handle.duty.remote()))
        except (RayError, RayServeException):
            return Look(time.monotonic())

    async def timeline(last_s: float) -> Timeline:
        try:
            return decode(Timeline, await handle.timeline.remote(last_s))
        except (RayError, RayServeException) as error:
            raise ConfigError(f"application {name!r} gave no timeline: {error}") from None

    yield Endpoint(HandleTarget(handle), model, look, timeline)


def _look(metrics: str, duty: Mapping[str, Any]) -> Look:
    """Devices by `attention:0`, `1:moe:0`: an actor's name without its application's."""
    samples, labels = samples_of(metrics)
    by_device = {name.partition(":")[2]: totals for name, totals in duty.items()}
    return Look(
        time.monotonic(), labels.get("model_name", ""), samples=samples, duty=by_device, engine=labels.get("engine", "")
    )
