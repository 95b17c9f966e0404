"""What no group could run is refused, whoever sends it: an error in the engine would end a group."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.batch import Request, Sampling
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, RequestError
from tests.http.echo_groups import EchoGroups

Post = Callable[..., httpx.Response]

LEGAL = Sampling(max_tokens=2, temperature=2.0, top_p=1e-300, seed=-(2**63), num_logprobs=20, stop_token_ids=(0, 256))


def request(*ids: int, **sampling: Any) -> Request:
    """A prompt with the extreme settings above, but for those given."""
    return Request(
        request_id="r",
        num_tokens=len(ids),
        arrival_s=0.0,
        token_ids=np.asarray(ids, dtype="<i4").tobytes(),
        sampling=dataclasses.replace(LEGAL, **sampling),
    )


@pytest.fixture
def config(config: ServeConfig) -> ServeConfig:
    """Prompts of 64 tokens, answers of 100."""
    return dataclasses.replace(config, max_answer_tokens=100)


@pytest.fixture
def model(model: ServedModel) -> ServedModel:
    """128 positions, and rows for the 257 tokens of bytes, though its tokenizer knows 320."""
    return dataclasses.replace(model, vocab_size=257)


@pytest.fixture
def service(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> PrefillService:
    """Only `check` and `generate` are asked."""
    return PrefillService(config, model, groups)


@pytest.mark.parametrize(
    "legal",
    [
        request(0, 256),
        request(*[1] * 64, max_tokens=65),
        request(1, max_tokens=100),
        request(1, temperature=5e-324, top_p=1.0, seed=2**63 - 1, num_logprobs=0, stop_token_ids=()),
        request(1, temperature=0.0, seed=None, num_logprobs=None),
    ],
)
def test_everything_at_its_limit_is_accepted(service: PrefillService, legal: Request) -> None:
    """None of these is refused."""
    service.admission.check([legal])


@pytest.mark.parametrize(
    ("illegal", "param", "message"),
    [
        (request(), "prompt", "prompt has 0 tokens; the limit is 1 to 64"),
        (request(*[1] * 65), "prompt", "prompt has 65 tokens; the limit is 1 to 64"),
        (request(1, 257), "prompt", r"prompt\[1\]=257 is not a token id; ids are integers in 0..256"),
        (request(-1, 257), "prompt", r"prompt\[0\]=-1 is not a token id; ids are integers in 0..256"),
        (dataclasses.replace(request(1), num_tokens=2), "num_tokens", "num_tokens=2 with 4 bytes of token_ids"),
        (dataclasses.replace(request(1), token_ids=b"12345"), "num_tokens", "num_tokens=1 with 5 bytes of token_ids"),
        (request(1, max_tokens=0), "max_tokens", "max_tokens=0; the limit is 1 to 100, the longest answer"),
        (request(1, max_tokens=101), "max_tokens", "max_tokens=101; the limit is 1 to 100, the longest answer"),
        (request(*[1] * 64, max_tokens=66), "max_tokens", "max_tokens=66; the limit is 1 to 65, the room after"),
        (request(1, temperature=-0.1), "temperature", "temperature=-0.1; the limit is 0 to 2"),
        (request(1, temperature=2.1), "temperature", "temperature=2.1; the limit is 0 to 2"),
        (request(1, temperature=float("nan")), "temperature", "temperature=nan; the limit is 0 to 2"),
        (request(1, top_p=0.0), "top_p", "top_p=0.0; the limit is above 0, to 1"),
        (request(1, top_p=float("nan")), "top_p", "top_p=nan; the limit is above 0, to 1"),
        (request(1, seed=2**63), "seed", "seed=9223372036854775808; the limit is a signed 64-bit integer"),
        (request(1, seed=-(2**63) - 1), "seed", "seed=-9223372036854775809; the limit is a signed 64-bit integer"),
        (request(1, num_logprobs=21), "logprobs", "logprobs=21; the limit is 0 to 20"),
        (request(1, num_logprobs=-1), "logprobs", "logprobs=-1; the limit is 0 to 20"),
        (request(1, stop_token_ids=(5, 257)), "stop_token_ids", "stop_token_ids=257; the limit is 0 to 256"),
        (request(1, stop_token_ids=(-1,)), "stop_token_ids", "stop_token_ids=-1; the limit is 0 to 256"),
    ],
)
def test_everything_beyond_is_refused_by_name(
    service: PrefillService, groups: EchoGroups, illegal: Request, param: str, message: str
) -> None:
    """Field, value and limit; by `generate` too, so that no caller can forget it."""
    with pytest.raises(RequestError, match=message) as refused:
        service.admission.check([illegal])
    with pytest.raises(RequestError, match=message):
        asyncio.run(anext(service.generate([illegal])))

    assert refused.value.param == param
    assert groups.batches == []


@pytest.mark.parametrize("name", ["running", "queued"])
def test_an_id_in_use_is_refused_and_its_owner_served(service: PrefillService, groups: EchoGroups, name: str) -> None:
    """The second client of an id neither gets the first one's tokens nor takes them away."""
    groups.gate = asyncio.Event()
    prompts = {
        each: dataclasses.replace(request(*[1] * 40), request_id=each) for each in ("running", "other", "queued")
    }

    async def tokens_of(each: str) -> int:
        return len([event async for event in service.generate([prompts[each]])])

    async def scenario() -> list[int]:
        tasks = [asyncio.create_task(tokens_of(each)) for each in prompts]
        await asyncio.sleep(0)  # each runs up to its first wait: two solos run, the third waits
        with pytest.raises(RequestError, match=f"request id '{name}' is in use"):
            await tokens_of(name)
        assert groups.gate
        groups.gate.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [2, 2, 2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the dog"}),
        ("/v1/completions", {"prompt": "the dog", "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the dog"}]}),
    ],
)
def test_a_text_whose_tokens_the_model_lacks_is_refused(post: Post, path: str, body: object) -> None:
    """A tokenizer may know more tokens than a checkpoint has rows for."""
    response = post(path, body)

    assert response.status_code == 400
    assert "is not a token id; ids are integers in 0..256" in response.json()["error"]["message"]


def test_too_many_prompts_are_refused_unread(post: Post) -> None:
    """Before any of them is tokenized or checked: the last of these five is no prompt."""
    response = post("/v1/completions", {"prompt": [[1], [1], [1], [1], [-1]]})

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "5 prompts in one request; the queue holds 4"


def test_an_answer_longer_than_the_configuration_allows_is_refused(post: Post) -> None:
    """With the limit, although there are positions left."""
    response = post("/v1/completions", {"prompt": [1], "max_tokens": 101})

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("max_tokens=101; the limit is 1 to 100")


def test_the_default_length_is_within_the_limit(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Whoever asks for no length gets at most what is allowed: 3 instead of 16."""
    service = PrefillService(dataclasses.replace(config, max_answer_tokens=3), model, groups)
    client = TestClient(build_api(service))
    response = client.post("/v1/completions", json={"prompt": [1]})

    assert response.json()["usage"]["completion_tokens"] == 3


def test_a_configuration_without_answers_is_refused(config: ServeConfig) -> None:
    """A prefill instance makes the first token."""
    with pytest.raises(ConfigError, match="max_answer_tokens=0 must be at least 1"):
        dataclasses.replace(config, max_answer_tokens=0)
