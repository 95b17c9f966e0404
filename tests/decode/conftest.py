"""A decode instance in process, beside a prefill instance of the same tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from asap_ray.actors.decode_service import DecodeService
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.tokenizer import load_tokenizer
from asap_ray.backends.undivided import UndividedHost
from asap_ray.config import ServeConfig
from asap_ray.models.model import load_model
from asap_ray.spec import KVCacheSpec, ParallelSpec, PrefillSpec
from tests.decode.prefilled import BLOCK

BLOCK_BYTES = 3 * 2 * 2 * 16 * 4 * BLOCK
"""Layers, keys and values, their heads and width, bytes of a number, tokens."""

Decoding = Callable[..., AbstractAsyncContextManager[DecodeService]]


def config_of(directory: Path, num_blocks: int) -> ServeConfig:
    """Of either instance of a pair."""
    return ServeConfig(
        model=str(directory),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=1),
        prefill=PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0),
        kv_cache=KVCacheSpec(block_size=BLOCK, memory_bytes=num_blocks * BLOCK_BYTES),
    )


def served_of(directory: Path) -> ServedModel:
    """The tiny model, whose answers end with their length alone."""
    model = load_model(directory)
    return ServedModel(
        name="tiny",
        vocab_size=model.config.vocab_size,
        max_model_len=model.config.max_position_embeddings,
        fingerprint=model.fingerprint,
        end_token_ids=(),
        tokenizer=load_tokenizer(directory),
    )


@pytest.fixture
def decoding(tiny_model: Path) -> Decoding:
    """A decode instance with room for so many blocks."""

    @asynccontextmanager
    async def make(num_blocks: int = 64) -> AsyncIterator[DecodeService]:
        config = config_of(tiny_model, num_blocks)
        service = DecodeService(config, served_of(tiny_model), UndividedHost(config, load_model(tiny_model)))
        try:
            yield service
        finally:
            await service.close()

    return make
