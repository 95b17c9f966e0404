"""The timeline of a running instance, from its frontend."""

from __future__ import annotations

from typing import Final

import httpx

from asap_ray.errors import ConfigError
from asap_ray.messages import decode
from asap_ray.tracks import Timeline
from asap_ray.workload.http_target import connect

_ANSWER_S: Final = 30.0
"""Devices have 10 s, and what they answer has to come here."""


async def timeline_of(url: str, last_s: float) -> Timeline:
    """The spans of the last seconds.

    Raises:
        ConfigError: nobody answers there, or nobody who records.
    """
    async with connect(url) as client:
        return await read_timeline(client, last_s)


async def read_timeline(client: httpx.AsyncClient, last_s: float) -> Timeline:
    """The same over a connection that there is."""
    url = client.base_url.join("/timeline")
    try:
        reply = await client.get("/timeline", params={"last_s": last_s}, timeout=_ANSWER_S)
        return decode(Timeline, reply.raise_for_status().content)
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from None
