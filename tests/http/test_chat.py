"""POST /v1/chat/completions, /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from asap_ray.actors.served_model import ServedModel
from tests.http.echo_groups import events_of

Post = Callable[..., httpx.Response]

MESSAGES = [{"role": "user", "content": "the dog"}]
RENDERED = "<|user|>the dog\n<|assistant|>"


def test_a_conversation_is_rendered_and_answered(post: Post, model: ServedModel) -> None:
    """The template writes the prompt; the groups repeat it."""
    num_tokens = len(model.tokenizer.encode(RENDERED, max_tokens=64))
    answer = post("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": num_tokens}).json()

    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "finish_reason": "length",
            "logprobs": None,
            "message": {"role": "assistant", "content": RENDERED, "refusal": None},
        }
    ]
    assert answer["usage"]["prompt_tokens"] == num_tokens


def test_text_parts_are_joined(post: Post) -> None:
    """A list of parts is the same prompt as its text."""
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "dog"}]
    bodies = [{"messages": [{"role": "user", "content": content}]} for content in (parts, "the\ndog")]
    tokens = [post("/tokenize", body).json()["tokens"] for body in bodies]

    assert tokens[0] == tokens[1]


def test_chat_logprobs_have_their_shape(post: Post) -> None:
    """Token, logprob, bytes, and candidates of the same kind."""
    body = {"messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 1}
    content = post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    first = {"token": "<", "logprob": -0.5, "bytes": [60]}

    assert content == [first | {"top_logprobs": [first]}]


def test_a_chat_stream_begins_with_the_role(post: Post) -> None:
    """Once, with the first token; then one chunk a token."""
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True}
    *chunks, end = events_of(post("/v1/chat/completions", body))

    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", None, None]
    assert ["asap" in chunk for chunk in chunks] == [True, False, False]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert end == "[DONE]"


@pytest.mark.parametrize("text", ["the lazy dog", "größer 日本語 🦊", " "])
def test_detokenize_undoes_tokenize(post: Post, text: str) -> None:
    """Ids of a text, and its text again."""
    answer = post("/tokenize", {"prompt": text, "return_token_strs": True}).json()

    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 64
    assert post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}
