"""An instance in process: real scheduler, real routes, and DP groups that answer by a rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.actors.tokenizer import load_tokenizer
from asap_ray.config import ServeConfig
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.http.echo_groups import EchoGroups

TEMPLATE = (
    "{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "größer 日本語 🦊 tokens", "to be or not to be"]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small files of a checkpoint, with a byte-level tokenizer trained on three lines."""
    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    directory.mkdir()
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}))
    return directory


@pytest.fixture
def config(checkpoint: Path) -> ServeConfig:
    """Two groups; prompts of at most 64 tokens, a queue of 4 prompts."""
    return ServeConfig(
        model=str(checkpoint),
        parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2),
        prefill=PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=16, max_wait_s=0.001, deadline_s=10.0),
        max_queued_requests=4,
        max_queued_tokens=128,
    )


@pytest.fixture
def model(checkpoint: Path) -> ServedModel:
    """A vocabulary of 320 of which id 0 ends a text, and 128 positions."""
    return ServedModel(
        name="tiny",
        vocab_size=320,
        max_model_len=128,
        fingerprint="tiny",
        end_token_ids=(0,),
        tokenizer=load_tokenizer(checkpoint),
    )


@pytest.fixture
def groups() -> EchoGroups:
    """Two groups that repeat the prompt."""
    return EchoGroups()


Connect = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def connect(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> Connect:
    """A client of the routes, without a socket; the service lives on the client's loop."""

    @asynccontextmanager
    async def client() -> AsyncIterator[httpx.AsyncClient]:
        service = PrefillService(config, model, groups)
        transport = httpx.ASGITransport(build_api(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://instance") as session:
            yield session
        if groups.gate:
            groups.gate.set()
        await service.close()

    return client


@pytest.fixture
def post(connect: Connect) -> Callable[..., httpx.Response]:
    """One POST to a fresh instance; `body` is JSON, or bytes as they are."""

    def send(path: str, body: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def once() -> httpx.Response:
            async with connect() as client:
                return await client.post(path, content=content)

        return asyncio.run(once())

    return send


@pytest.fixture
def get(connect: Connect) -> Callable[[str], httpx.Response]:
    """One GET from a fresh instance."""

    def fetch(path: str) -> httpx.Response:
        async def once() -> httpx.Response:
            async with connect() as client:
                return await client.get(path)

        return asyncio.run(once())

    return fetch
