"""The timeline of a running instance, from its frontend."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from fastapi import Request, Response

from asap_ray.actors.openai import quote
from asap_ray.errors import ConfigError, RequestError
from asap_ray.messages import decode
from asap_ray.tracks import Timeline
from asap_ray.workload.http_target import ERROR_CHARS, connect

_ANSWER_S: Final = 30.0
"""Devices have 10 s, and what they answer has to come here."""


def timeline_route(read: Callable[[float], Awaitable[bytes]]) -> Callable[..., Any]:
    """`GET /timeline?last_s=10`: the message that `read` gives."""

    async def timeline(http: Request) -> Response:
        return Response(await read(_last_s(http)), media_type="application/msgpack")

    return timeline


def _last_s(http: Request) -> float:
    text = http.query_params.get("last_s", "")
    try:
        last_s = float(text)
    except ValueError:
        last_s = 0.0
    if not 0 < last_s < math.inf:
        raise RequestError(f"last_s={quote(text)} must be a positive number of seconds", "last_s")
    return last_s


async def timeline_of(url: str, last_s: float, key: str = "") -> Timeline:
    """The spans of the last seconds; `key` is the instance's, if it has one.

    Raises:
        ConfigError: nobody answers there, or nobody who records.
    """
    async with connect(url, key) as client:
        return await read_timeline(client, last_s)


async def read_timeline(client: httpx.AsyncClient, last_s: float) -> Timeline:
    """The same over a connection that there is."""
    url = client.base_url.join("/timeline")
    try:
        reply = await client.get("/timeline", params={"last_s": last_s}, timeout=_ANSWER_S)
        return decode(Timeline, reply.raise_for_status().content)
    except httpx.HTTPStatusError as error:
        raise ConfigError(f"{url}: HTTP {error.response.status_code}: {error.response.text[:ERROR_CHARS]}") from None
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from None
