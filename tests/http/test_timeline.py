"""GET /timeline: the message of a frontend, over HTTP and back."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from asap_ray.actors.http_errors import add_error_handlers
from asap_ray.actors.timeline import read_timeline, timeline_route
from asap_ray.errors import ConfigError
from asap_ray.messages import encode
from asap_ray.tracks import Role, Source, Timeline, Track

TIMELINE = Timeline(tracks=(Track(source=Source(role=Role.MOE, index=1), stream="send", spans=b"\0" * 32, batches=()),))


async def answer(last_s: float) -> bytes:
    """The timeline of an instance that has recorded for two seconds."""
    return encode(TIMELINE if last_s >= 2.0 else Timeline(tracks=()))


def client() -> httpx.AsyncClient:
    """Of a frontend that has the route."""
    api = FastAPI()
    api.add_api_route("/timeline", timeline_route(answer))
    add_error_handlers(api, count=lambda _: None)
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://asap")


@pytest.mark.parametrize(("last_s", "tracks"), [(2.0, TIMELINE.tracks), (1.0, ())])
def test_a_timeline_comes_as_it_was(last_s: float, tracks: tuple[Track, ...]) -> None:
    """The number of seconds reaches the instance, its spans the caller."""
    assert asyncio.run(read_timeline(client(), last_s)).tracks == tracks


@pytest.mark.parametrize("last_s", ["0", "-1", "nan", "inf", "soon", ""])
def test_bad_seconds_are_refused(last_s: str) -> None:
    """400 in the OpenAI shape, with the field and the value."""
    reply = asyncio.run(client().get("/timeline", params={"last_s": last_s}))

    error = reply.json()["error"]
    assert (reply.status_code, error["param"], f"last_s={last_s!r}" in error["message"]) == (400, "last_s", True)


def test_another_server_is_named() -> None:
    """One that has no such route."""
    api = httpx.AsyncClient(transport=httpx.ASGITransport(FastAPI()), base_url="http://other")

    with pytest.raises(ConfigError, match=r"http://other/timeline: HTTP 404: "):
        asyncio.run(read_timeline(api, 1.0))
