"""POST /inference/v1/generate: token ids in, token ids out, as vLLM has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.http.echo_groups import events_of

Post = Callable[..., httpx.Response]

ROUTE = "/inference/v1/generate"
ASKED: dict[str, Any] = {"request_id": "r1", "token_ids": [70, 71, 72], "sampling_params": {"max_tokens": 2}}


def test_ids_in_ids_out(post: Post) -> None:
    """The client's id, one choice, and null where vLLM has null."""
    answer = post(ROUTE, ASKED).json()

    assert answer["choices"] == [{"index": 0, "finish_reason": "length", "logprobs": None, "token_ids": [70, 71]}]
    assert {name: answer[name] for name in ("request_id", "prompt_logprobs", "kv_transfer_params")} == {
        "request_id": "r1",
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }


def test_an_id_is_made_for_whoever_gives_none(post: Post) -> None:
    """As vLLM does."""
    answer = post(ROUTE, {"token_ids": [70], "sampling_params": {}}).json()

    assert answer["request_id"].startswith("generate-tokens-")


def test_a_stream_has_a_chunk_a_token_and_the_usage(post: Post) -> None:
    """The options of a stream are beside the sampling parameters."""
    *chunks, usage, end = events_of(post(ROUTE, ASKED | {"stream": True, "stream_options": {"include_usage": True}}))

    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[70], [71]]
    assert (usage["usage"]["completion_tokens"], end) == (2, "[DONE]")


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"token_ids": [400]}, "token_ids", "token_ids[0]=400 is not a token id; ids are integers in 0..319"),
        ({"token_ids": []}, "token_ids", "token_ids=[]: list should have at least 1 item after validation, not 0"),
        ({"sampling_params": None}, "sampling_params", "sampling_params is missing"),
        (
            {"sampling_params": {"stop": ["x"]}},
            "stop",
            "stop=['x'] needs text; this route has token ids alone: stop_token_ids",
        ),
        ({"sampling_params": {"n": 2}}, "n", "n=2 is not supported; leave it out"),
        (
            {"kv_transfer_params": {"do_remote_decode": 1}},
            "kv_transfer_params",
            "do_remote_decode=1 must be of type bool",
        ),
        ({"kv_transfer_params": []}, "kv_transfer_params", "kv_transfer_params=[]: input should be an object"),
    ],
)
def test_what_is_wrong_is_named(post: Post, changes: dict[str, Any], param: str, message: str) -> None:
    """In the OpenAI error shape."""
    response = post(ROUTE, ASKED | changes)

    assert (response.status_code, response.json()["error"]["param"], response.json()["error"]["message"]) == (
        400,
        param,
        message,
    )
