"""What the proxy makes of a frontend that died with a request, without Ray: an application that stops in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asap_ray.actors.proxy import Retriable

BEGIN_STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


def saying(*messages: Message) -> ASGIApp:
    """An application that sends these and returns, as the proxy does when a replica is gone."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


def reply_of(messages: Sequence[Message]) -> httpx.Response:
    """What a client reads."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Retriable(saying(*messages)))
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            return await client.get("/v1/models", headers={"X-Request-ID": "mine"})

    return asyncio.run(ask())


def test_a_request_that_nobody_answers_may_be_sent_again() -> None:
    """503 in OpenAI's shape, when to come back, and the request's id."""
    reply = reply_of([])

    assert (reply.status_code, reply.headers["retry-after"], reply.headers["x-request-id"]) == (503, "5", "mine")
    assert reply.json()["error"]["code"] == "not_ready"


def test_a_stream_that_stops_ends_with_an_error_event() -> None:
    """What has been sent stays; then what another loss says in a stream, and the end mark."""
    reply = reply_of([BEGIN_STREAM, {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}])

    token, error, end, rest = reply.text.split("\n\n")
    assert (token, end, rest) == ("data: {}", "data: [DONE]", "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "not_ready"


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_of_ours_passes_as_it_is(status: int) -> None:
    """Also one that says that we have a bug."""
    start = {"type": "http.response.start", "status": status, "headers": [(b"x", b"y")]}

    reply = reply_of([start, {"type": "http.response.body", "body": b"ours"}])

    assert (reply.status_code, reply.headers["x"], reply.text) == (status, "y", "ours")
