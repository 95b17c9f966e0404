"""POST /v1/completions against groups that repeat the prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from asap_ray.actors.served_model import ServedModel
from tests.http.echo_groups import EchoGroups, events_of, prompt_ids

Post = Callable[..., httpx.Response]


def test_a_prompt_of_token_ids_is_answered(post: Post, model: ServedModel) -> None:
    """Ids in, text out, with usage and the finish reason."""
    answer = post("/v1/completions", {"model": "tiny", "prompt": [70, 71, 72], "max_tokens": 2}).json()

    assert answer["choices"] == [
        {"index": 0, "finish_reason": "length", "logprobs": None, "text": model.tokenizer.decode([70, 71])}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_text_and_its_token_ids_have_one_answer(post: Post, model: ServedModel) -> None:
    """Tokenizing is the only difference between the two forms of a prompt."""
    ids = model.tokenizer.encode("the lazy dog", max_tokens=64)
    answers = [post("/v1/completions", {"prompt": p, "max_tokens": len(ids)}).json() for p in ("the lazy dog", ids)]

    assert [answer["choices"][0]["text"] for answer in answers] == ["the lazy dog"] * 2


@pytest.mark.parametrize("prompt", [["to be", "the dog", "fox"], [[5, 6], [7], [8, 9, 10]]])
def test_prompts_of_a_list_are_answered_in_order(post: Post, prompt: list[Any], groups: EchoGroups) -> None:
    """Choice k is the answer to prompt k, whatever batch it ran in."""
    body = {"prompt": prompt, "max_tokens": 1, "return_token_ids": True}
    answer = post("/v1/completions", body).json()
    first_ids = {r.request_id: prompt_ids(r)[:1] for batch in groups.batches for r in batch.requests}

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    expected = [first_ids[f"{answer['id']}-{k}"] for k in range(3)]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected


def test_the_parts_of_ttft_are_in_the_response(post: Post) -> None:
    """The group's stamps, and the two ends that only the frontend sees."""
    ttft = post("/v1/completions", {"prompt": [1, 2]}).json()["asap"]["ttft"]

    assert {name: ttft[name] for name in ("attention_s", "dispatch_s", "combine_s")} == {
        "attention_s": 0.25,
        "dispatch_s": 0.125,
        "combine_s": 0.5,
    }
    assert 0 < ttft["queue_s"] <= ttft["total_s"]


def test_a_prompt_of_exactly_the_limit_is_served(post: Post) -> None:
    """64 tokens are the limit, 65 are not tested here."""
    assert post("/v1/completions", {"prompt": [1] * 64, "max_tokens": 1}).status_code == 200


def test_max_tokens_may_fill_all_positions(post: Post) -> None:
    """The last generated token has no position of its own: 64 + 65 tokens with 128 positions."""
    answer = post("/v1/completions", {"prompt": [1] * 64, "max_tokens": 65}).json()

    assert answer["usage"]["completion_tokens"] == 65


def test_without_max_tokens_there_are_16(post: Post) -> None:
    """OpenAI's default."""
    assert post("/v1/completions", {"prompt": [1]}).json()["usage"]["completion_tokens"] == 16


def test_the_end_token_stops(post: Post) -> None:
    """Id 0 ends a text in this checkpoint."""
    answer = post("/v1/completions", {"prompt": [70, 0, 71], "max_tokens": 5}).json()

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2


def test_ignore_eos_does_not_stop(post: Post) -> None:
    """Load generators need answers of a given length."""
    body = {"prompt": [70, 0, 71], "max_tokens": 5, "min_tokens": 5, "ignore_eos": True}

    assert post("/v1/completions", body).json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(post: Post, stream: bool) -> None:
    """Although it begins inside one token and ends inside another."""
    body = {"prompt": "the lazy dog", "max_tokens": 40, "stop": ["zzz", "azy d"], "stream": stream}
    response = post("/v1/completions", body)
    parts = [e for e in events_of(response) if e != "[DONE]"] if stream else [response.json()]

    assert "".join(part["choices"][0]["text"] for part in parts) == "the l"
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_decode(post: Post, groups: EchoGroups, stream: bool) -> None:
    """The group is told, and makes no 100 tokens."""
    post("/v1/completions", {"prompt": "the lazy dog", "max_tokens": 100, "stop": "azy d", "stream": stream})

    assert groups.num_finished == 1
    assert groups.made.total() < 20


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_decode_of_its_prompt_alone(post: Post, groups: EchoGroups, stream: bool) -> None:
    """The other prompt of the request has all its tokens."""
    prompts = ["the lazy dog", "to be or not to be"]
    post("/v1/completions", {"prompt": prompts, "max_tokens": 60, "stop": "azy d", "stream": stream})

    assert sorted(number < 20 for number in groups.made.values()) == [False, True]
    assert max(groups.made.values()) == 60


def test_logprobs_have_the_legacy_shape(post: Post, model: ServedModel) -> None:
    """Four parallel lists; the chosen token is among its candidates."""
    body = {"prompt": [70, 71], "max_tokens": 2, "logprobs": 2}
    logprobs = post("/v1/completions", body).json()["choices"][0]["logprobs"]
    spelled = {k: model.tokenizer.piece(k) for k in (70, 71, 72)}

    assert logprobs == {
        "tokens": [spelled[70], spelled[71]],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{spelled[70]: -0.5, spelled[71]: -1.5}, {spelled[71]: -0.5, spelled[72]: -1.5}],
        "text_offset": [0, 1],
    }


def test_an_impossible_token_has_a_finite_logprob(post: Post, groups: EchoGroups) -> None:
    """JSON cannot say minus infinity."""
    groups.logprob = float("-inf")
    body = {"prompt": [70], "max_tokens": 1, "logprobs": 0}

    assert post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


def test_a_stream_has_one_chunk_a_token(post: Post, model: ServedModel) -> None:
    """TTFT with the first, the usage after the last, then the end mark."""
    body = {"prompt": [70, 71, 72], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, end = events_of(post("/v1/completions", body))

    assert [chunk["choices"][0]["text"] for chunk in chunks] == [model.tokenizer.piece(k) for k in (70, 71, 72)]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert ["asap" in chunk for chunk in chunks] == [True, False, False]
    assert (usage["choices"], usage["usage"]["total_tokens"], end) == ([], 6, "[DONE]")


def test_a_stream_of_several_prompts_says_whose_chunk_it_is(post: Post) -> None:
    """Each prompt's chunks, put together, are its answer."""
    body = {"prompt": [[70], [71, 72]], "max_tokens": 2, "stream": True, "return_token_ids": True}
    token_ids: dict[int, list[int]] = {0: [], 1: []}
    *chunks, _ = events_of(post("/v1/completions", body))
    for chunk in chunks:
        token_ids[chunk["choices"][0]["index"]] += chunk["choices"][0]["token_ids"]

    assert token_ids == {0: [70, 70], 1: [71, 72]}


def test_what_routers_add_is_tolerated(post: Post) -> None:
    """A body as a prefill-decode router sends it."""
    body = {
        "prompt": [1, 2],
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 1,
        "logprobs": False,
        "stream_options": None,
        "n": 1,
        "no_stop_trim": False,
        "kv_transfer_params": {"do_remote_decode": False, "remote_host": None},
    }
    assert post("/v1/completions", body).json()["usage"]["completion_tokens"] == 1
