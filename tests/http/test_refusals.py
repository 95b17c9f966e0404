"""Every bad input gets a 400 in the OpenAI shape that names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.http.echo_groups import EchoGroups

Post = Callable[..., httpx.Response]

OK = {"prompt": [1, 2]}
CHAT = {"messages": [{"role": "user", "content": "the dog"}]}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "param", "part"),
    [
        (COMPLETIONS, b"", None, "not a JSON object"),
        (COMPLETIONS, b'{"prompt": "a"', None, "not a JSON object"),
        (COMPLETIONS, b"\xff\xfe", None, "not a JSON object"),
        (COMPLETIONS, b"[1, 2]", None, "not a JSON object"),
        (COMPLETIONS, b"[" * 5000, None, "recursion"),
        (COMPLETIONS, b'{"prompt": "\\ud800"}', None, "not a JSON object"),
        (COMPLETIONS, b'{"prompt": [' + b"9" * 5000 + b"]}", None, "not a JSON object"),
        (COMPLETIONS, {}, "prompt", "prompt is missing"),
        (COMPLETIONS, {"prompt": None}, "prompt", "prompt is missing"),
        (COMPLETIONS, {"prompt": ""}, "prompt", "0 tokens"),
        (COMPLETIONS, {"prompt": []}, "prompt", "prompt=[]"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt", "0 tokens"),
        (COMPLETIONS, {"prompt": ["to be", ""]}, "prompt", "0 tokens"),
        (COMPLETIONS, {"prompt": 7}, "prompt", "prompt=7"),
        (COMPLETIONS, {"prompt": {"text": "a"}}, "prompt", "prompt={'text': 'a'}"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt", "mixes"),
        (COMPLETIONS, {"prompt": ["a", [1]]}, "prompt", "mixes"),
        (COMPLETIONS, {"prompt": [1, 2.0]}, "prompt", "prompt[1]=2.0"),
        (COMPLETIONS, {"prompt": [1, True]}, "prompt", "prompt[1]=True"),
        (COMPLETIONS, {"prompt": [1, None]}, "prompt", "prompt[1]=None"),
        (COMPLETIONS, {"prompt": [1, -1]}, "prompt", "prompt[1]=-1"),
        (COMPLETIONS, {"prompt": [1, 320]}, "prompt", "prompt[1]=320 is not a token id; ids are integers in 0..319"),
        (COMPLETIONS, {"prompt": [10**30]}, "prompt", "0..319"),
        (COMPLETIONS, {"prompt": [[1], [2, 320]]}, "prompt", "320"),
        (COMPLETIONS, {"prompt": [1] * 65}, "prompt", "prompt has 65 tokens; the limit is 1 to 64"),
        (COMPLETIONS, {"prompt": "the " * 100}, "prompt", "the limit is"),
        (COMPLETIONS, {"prompt": "x" * 10_000}, "prompt", "10000 characters; the limit is 64 tokens"),
        (COMPLETIONS, {"prompt": [[1]] * 5}, "prompt", "5 prompts"),
        (COMPLETIONS, OK | {"model": "gpt-5"}, "model", "'gpt-5' does not exist; this instance serves 'tiny'"),
        (COMPLETIONS, OK | {"model": 3}, "model", "model=3"),
        (COMPLETIONS, OK | {"max_tokens": 0}, "max_tokens", "max_tokens=0"),
        (COMPLETIONS, OK | {"max_tokens": 1.5}, "max_tokens", "max_tokens=1.5"),
        (COMPLETIONS, OK | {"max_tokens": True}, "max_tokens", "max_tokens=True"),
        (COMPLETIONS, OK | {"max_tokens": 128}, "max_tokens", "max_tokens=128; the limit is 1 to 127"),
        (COMPLETIONS, OK | {"max_completion_tokens": 10**9}, "max_tokens", "the limit is 1 to 127"),
        (COMPLETIONS, OK | {"max_tokens": 10**4000}, "max_tokens", "less than 2147483648"),
        (COMPLETIONS, OK | {"stop_token_ids": [320]}, "stop_token_ids", "stop_token_ids=320; the limit is 0 to 319"),
        (COMPLETIONS, OK | {"stop_token_ids": [1] * 17}, "stop_token_ids", "at most 16"),
        (COMPLETIONS, OK | {"min_tokens": 2}, "min_tokens", "min_tokens=2"),
        (COMPLETIONS, OK | {"temperature": -0.1}, "temperature", "temperature=-0.1"),
        (COMPLETIONS, OK | {"temperature": float("nan")}, "temperature", "temperature=nan"),
        (COMPLETIONS, OK | {"temperature": float("inf")}, "temperature", "temperature=inf"),
        (COMPLETIONS, OK | {"temperature": "1"}, "temperature", "temperature='1'"),
        (COMPLETIONS, OK | {"temperature": True}, "temperature", "temperature=True"),
        (COMPLETIONS, OK | {"top_p": 0}, "top_p", "top_p=0"),
        (COMPLETIONS, OK | {"top_p": 1.01}, "top_p", "top_p=1.01"),
        (COMPLETIONS, OK | {"seed": 2**63}, "seed", "seed=9223372036854775808"),
        (COMPLETIONS, OK | {"n": 2}, "n", "n=2 is not supported"),
        (COMPLETIONS, OK | {"n": 10**18}, "n", "is not supported"),
        (COMPLETIONS, OK | {"echo": True}, "echo", "echo=True is not supported"),
        (COMPLETIONS, OK | {"suffix": "end"}, "suffix", "suffix='end' is not supported"),
        (COMPLETIONS, OK | {"logprobs": 21}, "logprobs", "logprobs=21"),
        (COMPLETIONS, OK | {"logprobs": -1}, "logprobs", "logprobs=-1"),
        (COMPLETIONS, OK | {"logprobs": True}, "logprobs", "logprobs=True"),
        (COMPLETIONS, OK | {"stop": ""}, "stop.0", "stop.0=''"),
        (COMPLETIONS, OK | {"stop": ["a"] * 17}, "stop", "at most 16"),
        (COMPLETIONS, OK | {"stream": "yes"}, "stream", "stream='yes'"),
        (COMPLETIONS, OK | {"presence_penalty": 0.5}, "presence_penalty", "presence_penalty=0.5"),
        (COMPLETIONS, OK | {"logit_bias": {"50": -100}}, "logit_bias", "logit_bias={'50': -100}"),
        (CHATS, {}, "messages", "messages is missing"),
        (CHATS, {"messages": []}, "messages", "at least 1"),
        (CHATS, {"messages": ["hello"]}, "messages.0", "messages.0='hello'"),
        (CHATS, {"messages": [{"content": "a"}]}, "messages.0.role", "messages.0.role is missing"),
        (CHATS, {"messages": [{"role": "user", "content": 3}]}, "messages", "content=3"),
        (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
        (CHATS, CHAT | {"top_logprobs": 2}, "top_logprobs", "needs logprobs=true"),
        (CHATS, CHAT | {"logprobs": 2}, "logprobs", "logprobs=2"),
        (CHATS, CHAT | {"tools": [{"type": "function"}]}, "tools", "is not supported"),
        (CHATS, CHAT | {"response_format": {"type": "json_object"}}, "response_format", "is not supported"),
        ("/tokenize", {}, "prompt", "exactly one of prompt and messages"),
        ("/detokenize", {"tokens": [1, 400]}, "tokens", "tokens[1]=400"),
        ("/detokenize", {"tokens": [1.0]}, "tokens.0", "tokens.0=1.0"),
    ],
)
def test_bad_input_is_refused_by_name(
    post: Post, groups: EchoGroups, path: str, body: Any, param: str, part: str
) -> None:
    """400, the field, the value; and the engine never hears of it."""
    response = post(path, body)
    error = response.json()["error"]

    assert (response.status_code, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        None,
    )
    assert part in error["message"]
    assert len(error["message"]) < 250
    assert groups.batches == []


def test_a_stream_is_refused_before_its_headers(post: Post) -> None:
    """A bad streaming request has a status, not an event."""
    assert post(COMPLETIONS, {"prompt": [], "stream": True}).status_code == 400


def test_a_body_longer_than_any_queue_could_take_is_not_read(post: Post) -> None:
    """16 bytes a token of the queue, and 64 KiB."""
    response = post(COMPLETIONS, {"prompt": "x" * (16 * 128 + (1 << 16))})

    assert response.status_code == 413
    assert response.json()["error"]["message"] == "the body is longer than 67584 bytes"


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), (COMPLETIONS, 405)])
def test_unknown_routes_have_the_same_shape(get: Callable[[str], httpx.Response], path: str, status: int) -> None:
    """Even what the router refuses is an OpenAI error."""
    response = get(path)

    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
