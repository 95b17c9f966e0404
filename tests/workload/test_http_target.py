"""The HTTP target against scripted answers."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from asap_ray.errors import ConfigError
from asap_ray.workload.client import Reply
from asap_ray.workload.http_target import HttpTarget, ServedModel, connect, served_model

PARTS = {"queue_s": 0.1, "attention_s": 0.2, "dispatch_s": 0.0, "combine_s": 0.3, "total_s": 0.7}
TOKEN = {"choices": [{"index": 0, "text": "a"}]}


def sse(*events: object) -> httpx.Response:
    """A stream of these events."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return httpx.Response(200, text="".join(lines) + ": comment\n\ndata: [DONE]\n\n")


def ask(response: httpx.Response) -> tuple[Reply, int, dict[str, object]]:
    """Send one prompt; the reply, how often a first token was reported, and the body that was sent."""
    bodies: list[dict[str, object]] = []
    first_tokens: list[None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return response

    async def send() -> Reply:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as client:
            return await HttpTarget(client, "m").send([1, 2], 3, lambda: first_tokens.append(None))

    return asyncio.run(send()), len(first_tokens), bodies[0]


def test_body_is_a_streamed_completion_of_token_ids() -> None:
    """The request any OpenAI-compatible server understands."""
    _, _, body = ask(sse(TOKEN))

    assert body == {"model": "m", "prompt": [1, 2], "max_tokens": 3, "temperature": 0, "stream": True}


def test_first_token_is_the_first_event_with_a_choice() -> None:
    """Events without choices come before, more tokens after; it is reported once."""
    reply, num_first_tokens, _ = ask(sse({"choices": []}, TOKEN, TOKEN, {"choices": [], "usage": {}}))

    assert (reply, num_first_tokens) == (Reply(200), 1)


def test_parts_of_the_ttft_are_read() -> None:
    """They are at the top level of a chunk, under asap.ttft."""
    reply, _, _ = ask(sse({**TOKEN, "asap": {"ttft": PARTS}}, TOKEN))

    assert reply.ttft_parts_s == PARTS


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (httpx.Response(429, json={"error": {"message": "full", "type": "x"}}), Reply(429, "full")),
        (httpx.Response(502, text="<html>bad gateway"), Reply(502, "<html>bad gateway")),
        (httpx.Response(404, json={"detail": "Not Found"}), Reply(404, "{'detail': 'Not Found'}")),
        (sse({"error": {"message": "group 1 is lost"}}), Reply(200, "group 1 is lost")),
    ],
)
def test_error_is_told_in_the_servers_words(response: httpx.Response, expected: Reply) -> None:
    """OpenAI's shape, anything else, and an error inside a stream."""
    assert ask(response)[:2] == (expected, 0)


def models(response: httpx.Response) -> ServedModel:
    """What `served_model` makes of an answer."""

    async def read() -> ServedModel:
        transport = httpx.MockTransport(lambda _: response)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await served_model(client)

    return asyncio.run(read())


def test_served_model_is_the_first_listed() -> None:
    """Limits are None where a server does not give them."""
    listed = {"data": [{"id": "qwen", "max_model_len": 4096}, {"id": "other"}]}

    assert models(httpx.Response(200, json=listed)) == ServedModel("qwen", 4096, None)


@pytest.mark.parametrize(
    "response", [httpx.Response(503), httpx.Response(200, text="hello"), httpx.Response(200, json={})]
)
def test_endpoint_that_is_not_openais_is_refused(response: httpx.Response) -> None:
    """Before the replay starts, with the address that was asked."""
    with pytest.raises(ConfigError, match="http://test/v1/models"):
        models(response)


def test_v1_at_the_end_of_the_url_is_understood() -> None:
    """Users copy OpenAI's base URL."""

    async def base() -> str:
        async with connect("http://host:8000/v1/") as client:
            return str(client.base_url.join("/v1/models"))

    assert asyncio.run(base()) == "http://host:8000/v1/models"


def test_a_key_goes_with_every_request() -> None:
    """As OpenAI's clients send it."""

    async def header() -> str:
        async with connect("http://host:8000", "sk-1") as client:
            return client.build_request("GET", "/v1/models").headers["authorization"]

    assert asyncio.run(header()) == "Bearer sk-1"


def test_nobody_listening_is_a_config_error() -> None:
    """Port 9 of this machine answers nobody."""

    async def read() -> ServedModel:
        async with connect("http://127.0.0.1:9") as client:
            return await served_model(client)

    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/v1/models: ConnectError"):
        asyncio.run(read())
