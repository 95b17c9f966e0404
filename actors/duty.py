"""How busy the devices of all instances of an application are, whichever of its replicas is asked."""

from __future__ import annotations

import asyncio
import contextlib

import ray
from ray.exceptions import RayError

from asap_ray.actors.placement import NAMESPACE, running_in_app
from asap_ray.actors.recovery import ANSWER_S
from asap_ray.batch import Duty
from asap_ray.messages import decode


async def duty_of(app: str) -> dict[str, Duty]:
    """Totals of every device's compute stream, by name; a device that does not answer is left out."""
    names = running_in_app(app)
    replies = await asyncio.gather(*map(_ask, names))
    return {name: decode(Duty, reply) for name, reply in zip(names, replies, strict=True) if reply is not None}


async def _ask(name: str) -> bytes | None:
    with contextlib.suppress(ValueError, RayError, TimeoutError):  # not there, or not well
        reply: bytes = await asyncio.wait_for(ray.get_actor(name, namespace=NAMESPACE).duty.remote(), ANSWER_S)
        return reply
    return None
