"""A checkpoint without a tokenizer serves token ids."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from asap_ray.actors.served_model import ServedModel

Post = Callable[..., httpx.Response]


@pytest.fixture
def model() -> ServedModel:
    """The model of the other files, but nobody can read it."""
    return ServedModel(
        name="tiny", vocab_size=320, max_model_len=128, fingerprint="tiny", end_token_ids=(0,), tokenizer=None
    )


def test_token_ids_are_served(post: Post) -> None:
    """Tokens are named by their ids, and the text is empty."""
    body = {"prompt": [1, 2], "max_tokens": 2, "logprobs": 0, "return_token_ids": True}
    choice = post("/v1/completions", body).json()["choices"][0]

    assert (choice["text"], choice["token_ids"]) == ("", [1, 2])
    assert choice["logprobs"]["tokens"] == ["token_id:1", "token_id:2"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the dog"}),
        ("/v1/completions", {"prompt": [1], "stop": ["dog"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the dog"}]}),
        ("/tokenize", {"prompt": "the dog"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_text_is_refused(post: Post, path: str, body: object) -> None:
    """With what to do instead."""
    response = post(path, body)

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "model 'tiny' has no tokenizer; send token ids"
