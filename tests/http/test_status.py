"""Statuses beyond 400, and the routes that probes and routers call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from asap_ray import __version__
from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from tests.http.echo_groups import EchoGroups, events_of

Post = Callable[..., httpx.Response]
Get = Callable[[str], httpx.Response]

OK = {"prompt": [7] * 20, "max_tokens": 3}


@pytest.fixture
def config(config: ServeConfig, request: pytest.FixtureRequest) -> ServeConfig:
    """With `late`, an objective that nobody meets who has to wait."""
    return replace(config, slo_ttft_s=1e-9) if "late" in request.fixturenames else config


@pytest.fixture
def late() -> None:
    """Asks for that."""


def test_overload_is_429_with_retry_after(connect: Callable[[], Any], groups: EchoGroups) -> None:
    """Four prompts run, four wait; the first answer of nine is the refusal."""
    groups.gate = asyncio.Event()

    async def scenario() -> httpx.Response:
        async with connect() as client:
            tasks = [asyncio.create_task(client.post("/v1/completions", json=OK)) for _ in range(9)]
            refused, served = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            groups.gate.set()
            assert {response.status_code for response in await asyncio.gather(*served)} == {200}
            return refused.pop().result()

    response = asyncio.run(scenario())
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert int(response.headers["retry-after"]) >= 1


def test_a_prompt_that_would_be_late_is_429(connect: Callable[[], Any], groups: EchoGroups, late: None) -> None:
    """While one prompt runs, none can be answered within a nanosecond; the body says why."""
    assert late is None
    groups.gate = asyncio.Event()

    async def scenario() -> httpx.Response:
        async with connect() as client:
            running = asyncio.create_task(client.post("/v1/completions", json=OK))
            await groups.started.get()
            response = await client.post("/v1/completions", json=OK)
            groups.gate.set()
            assert (await running).status_code == 200
            return response

    response = asyncio.run(scenario())
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["message"].endswith("slo_ttft_s=1e-09 refuses what would be late")


def test_a_missing_device_is_503_on_ready_and_on_prompts(post: Post, get: Get, groups: EchoGroups) -> None:
    """And 200 on /health: restarting the frontend would not bring it back."""
    groups.absent = ("asap:moe:1 (joining)",)
    ready, prompt, health = get("/ready"), post("/v1/completions", OK), get("/health")

    assert [ready.status_code, prompt.status_code, health.status_code] == [503, 503, 200]
    assert ready.json()["error"]["message"] == "not ready: asap:moe:1 (joining)"
    assert ready.json() == prompt.json()
    assert prompt.headers["retry-after"] == "5"


def test_a_loss_before_the_first_token_is_503_in_a_stream_too(post: Post, groups: EchoGroups) -> None:
    """Both groups fail it. Headers wait for the first token, so a router can still go elsewhere."""
    groups.failure = DeviceLost("moe 1 is gone")
    response = post("/v1/completions", OK | {"stream": True})

    assert response.status_code == 503
    assert response.json()["error"]["message"] == "group 1 failed: moe 1 is gone"


def test_a_loss_after_the_first_token_is_an_event(post: Post, groups: EchoGroups) -> None:
    """The status is out; the stream says what happened and ends."""
    groups.failure, groups.fail_after = DeviceLost("moe 1 is gone"), 1
    chunk, error, end = events_of(post("/v1/completions", OK | {"stream": True}))

    assert chunk["choices"][0]["finish_reason"] is None
    assert error["error"]["message"] == "group 0 failed: moe 1 is gone"
    assert end == "[DONE]"


def test_a_bug_is_500_without_its_text(post: Post, groups: EchoGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client learns nothing of the inside."""

    def missing() -> tuple[str, ...]:
        raise ValueError("/secret/path")

    monkeypatch.setattr(groups, "missing", missing)
    response = post("/v1/completions", OK)

    assert response.status_code == 500
    assert "secret" not in response.text


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_client_that_hangs_up_frees_its_place(
    config: ServeConfig, model: ServedModel, groups: EchoGroups, is_queued: bool
) -> None:
    """As a server tells it: a disconnect while the first token is awaited."""
    groups.gate = asyncio.Event()
    config = replace(config, prefill=replace(config.prefill, max_wait_s=60.0 if is_queued else 0.001))
    body = b'{"prompt": [7, 7], "stream": true}'

    async def scenario() -> tuple[int, int]:
        service = PrefillService(config, model, groups)
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            if message := next(messages, None):
                return message
            if not is_queued:
                await groups.started.get()
            return {"type": "http.disconnect"}

        statuses = []

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
        await build_api(service)(scope, receive, send)
        assert groups.gate
        groups.gate.set()
        await service.close()
        return statuses[0], len(groups.batches)

    assert asyncio.run(scenario()) == (499, 0 if is_queued else 1)


def test_models_has_the_one_model(get: Get) -> None:
    """With what a load generator must know: the longest prompt, and which ids there are."""
    card = get("/v1/models").json()["data"][0]

    assert (card["id"], card["object"], card["max_model_len"], card["vocab_size"]) == ("tiny", "model", 64, 320)
    assert get("/v1/models/tiny").json()["id"] == "tiny"
    assert get("/v1/models/other").status_code == 404


def test_ready_ping_and_version(get: Get) -> None:
    """What probes ask."""
    assert get("/ready").json() == {"ready": True}
    assert get("/ping").status_code == 200
    assert get("/version").json() == {"version": __version__}
