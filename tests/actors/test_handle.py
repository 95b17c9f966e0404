"""Replays inside a cluster: prompts through the application's handle, refusals as statuses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from ray import serve

from asap_ray.actors.app import build_app
from asap_ray.actors.endpoints import Endpoint, app_endpoint
from asap_ray.config import ServeConfig, config_to
from asap_ray.telemetry import frontend

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module")
def app_name(cluster: None, make_config: Callable[..., ServeConfig]) -> Iterator[str]:
    """A served application without HTTP between."""
    assert cluster is None
    serve.run(build_app(config_to(make_config("handled", 1, 1, 1))), name="handled", route_prefix=None)
    yield "handled"
    serve.delete("handled")


async def until_ready(endpoint: Endpoint) -> None:
    """Wait until a prompt is answered."""
    while (await endpoint.target.send([1], 1, lambda: None)).status != 200:
        pass


@pytest.mark.parametrize(
    ("prompt", "status", "error"),
    [
        ([1, 2, 3], 200, ""),
        ([600], 400, "600 is not a token id"),
        ([1] * 257, 400, "257 tokens"),
        ([], 400, "0 tokens"),
    ],
)
def test_an_answer_or_a_refusal_comes_back(run: Run, app_name: str, prompt: list[int], status: int, error: str) -> None:
    """What HTTP would have answered, as a reply of the replay."""
    first_tokens = []

    async def ask() -> Any:
        async with app_endpoint(app_name, "auto") as endpoint:
            await until_ready(endpoint)
            return await endpoint.target.send(prompt, 1, lambda: first_tokens.append(1))

    reply = run(ask())

    assert (reply.status, len(first_tokens), error in (reply.error or "")) == (status, int(status == 200), True)


def test_the_application_gives_its_timeline(run: Run, app_name: str) -> None:
    """A group with one stream, a MoE device with three."""

    async def ask() -> Any:
        async with app_endpoint(app_name, "auto") as endpoint:
            await until_ready(endpoint)
            return await endpoint.timeline(60.0)

    tracks = run(ask()).tracks

    assert [(track.source.name, track.stream) for track in tracks if track.spans] == [
        ("attention 0 rank 0", "attention"),
        *(("moe 0", stream) for stream in ("receive", "compute", "send")),
    ]


def test_the_application_says_what_it_serves_and_how_busy_it_is(run: Run, app_name: str) -> None:
    """A replay needs the vocabulary, the longest prompt and the devices' totals."""

    async def ask() -> Any:
        async with app_endpoint(app_name, "auto") as endpoint:
            await until_ready(endpoint)
            return endpoint.model, await endpoint.look()

    model, look = run(ask())

    assert (model.name, model.vocab_size, model.max_model_len) == ("tiny", 512, 256)
    assert sorted(look.duty) == ["attention:0", "moe:0"]
    assert look.has(frontend.RUNNING)
