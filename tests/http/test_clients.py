"""Unmodified clients over a real socket: the `openai` package and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import openai
import pytest

from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from tests.http.echo_groups import EchoGroups
from tests.http.server import serving

CHAT = [{"role": "user", "content": "the dog"}]


@pytest.fixture
def url(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> Iterator[str]:
    """A server on a free loopback port."""
    with serving(PrefillService(config, model, groups)) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """The official client, told where to go and not to hide failures by retrying."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as session:
        yield session


def test_openai_completion(client: openai.OpenAI) -> None:
    """Text, usage and logprobs arrive in the client's own types."""
    answer = client.completions.create(model="tiny", prompt="the dog", max_tokens=2, logprobs=1)

    assert answer.choices[0].text == "the dog"
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].logprobs.token_logprobs == [-0.5, -0.5]
    assert answer.model_extra["asap"]["ttft"]["attention_s"] == 0.25


def test_openai_completion_of_several_prompts(client: openai.OpenAI) -> None:
    """One choice a prompt."""
    answer = client.completions.create(model="tiny", prompt=[[5], [6, 7]], max_tokens=1)

    assert [choice.index for choice in answer.choices] == [0, 1]


def test_openai_completion_stream(client: openai.OpenAI) -> None:
    """Chunks until the end mark, the usage in the last."""
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(model="tiny", prompt=[70, 71], max_tokens=2, stream=True, stream_options=options)
    )

    assert [len(chunk.choices) for chunk in chunks] == [1, 1, 0]
    assert chunks[-1].usage.total_tokens == 4


def test_openai_chat(client: openai.OpenAI) -> None:
    """A message of the assistant, with logprobs."""
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=2, logprobs=True, top_logprobs=1)

    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "<|"
    assert [entry.logprob for entry in answer.choices[0].logprobs.content] == [-0.5, -0.5]


def test_openai_chat_stream(client: openai.OpenAI) -> None:
    """Deltas whose contents are the answer."""
    stream = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=2, stream=True)

    assert "".join(chunk.choices[0].delta.content for chunk in stream) == "<|"


def test_openai_models(client: openai.OpenAI) -> None:
    """The model's name is what `model=` wants."""
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_refusal_is_bad_request_error(client: openai.OpenAI) -> None:
    """With the field as `param`."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt=[1] * 65)

    assert refused.value.param == "prompt"
    assert "prompt has 65 tokens; the limit is 1 to 64" in refused.value.message


def test_a_loss_is_internal_server_error(client: openai.OpenAI, groups: EchoGroups) -> None:
    """The client's name for every 5xx; it would retry."""
    groups.failure = DeviceLost("moe 1 is gone")
    with pytest.raises(openai.InternalServerError) as failed:
        client.completions.create(model="tiny", prompt=[1])

    assert failed.value.status_code == 503


def test_a_loss_in_a_stream_is_api_error(client: openai.OpenAI, groups: EchoGroups) -> None:
    """The event after the headers is an exception to the client, not the end of the text."""
    groups.failure, groups.fail_after = DeviceLost("moe 1 is gone"), 1
    with pytest.raises(openai.APIError, match="moe 1 is gone"):
        list(client.completions.create(model="tiny", prompt=[1], max_tokens=3, stream=True))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(url: str) -> None:
    """As in the README."""
    command = ["curl", "-sS", "--max-time", "10", f"{url}/v1/completions", "-d", '{"prompt": [1, 2], "max_tokens": 1}']
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert answer["usage"]["total_tokens"] == 3
