"""Ordinary Hugging Face checkpoints of any family with random weights and a tokenizer, without `transformers`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Unpack

import torch
from safetensors.torch import save_file

from asap_ray.errors import ConfigError
from asap_ray.models.families import understand
from asap_ray.models.random_config import Sizes, config_of
from asap_ray.models.random_tokenizer import BYTES, SPECIAL_TOKENS, write_tokenizer
from asap_ray.models.tensors import tensors_of
from asap_ray.models.vocabulary import EMBEDDING
from asap_ray.models.weights import INDEX_FILE, SINGLE_FILE, Shape

BIAS: Final = 0.05
"""Spread of a bias's numbers: that of DeepSeek's routing changes which experts are chosen, now and then."""


def tiny() -> Sizes:
    """Half a million parameters: made and run in a moment, for tests."""
    return Sizes(
        hidden=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        num_experts=8,
        top_k=2,
        moe_intermediate=64,
        vocab_size=512,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        dtype=torch.float32,
        seed=0,
    )


def demo() -> Sizes:
    """88 M parameters, 13 M at work on a token: some thousand tokens a second on two CPU cores."""
    return Sizes(
        hidden=512,
        num_layers=6,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        num_experts=32,
        top_k=4,
        moe_intermediate=256,
        vocab_size=8192,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
        seed=0,
    )


def make_random_checkpoint(
    directory: Path, *, family: str = "qwen3_moe", max_shard_bytes: int = 1 << 30, **sizes: Unpack[Sizes]
) -> None:
    """Write a checkpoint that `transformers` and asap-ray load like any other.

    The same family, sizes and seed give the same bytes. config.json comes last: a directory that has one is whole.

    Args:
        directory: made if missing; files of a former checkpoint are overwritten.
        family: a `model_type` of `families.py`.
        max_shard_bytes: above this the weights are sharded, as large published models are.
        sizes: see `tiny` and `demo`.

    Raises:
        ConfigError: there is no such family, sizes contradict each other, or vocab_size is too small for a byte-level
            tokenizer; nothing was written.
    """
    smallest = BYTES + len(SPECIAL_TOKENS)
    if sizes["vocab_size"] < smallest:
        raise ConfigError(f"vocab_size={sizes['vocab_size']} must be at least {smallest}, the bytes and special tokens")
    config = config_of(family, sizes)
    tensors = tensors_of(understand(config, directory))
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, sizes["vocab_size"], sizes["max_position_embeddings"])
    _write_weights(directory, tensors, sizes, max_shard_bytes)
    end_ids = [SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")]
    _write_json(directory / "generation_config.json", {"eos_token_id": end_ids, "pad_token_id": end_ids[1]})
    _write_json(directory / "config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_weights(directory: Path, shapes: Iterable[tuple[str, Shape]], sizes: Sizes, max_shard_bytes: int) -> None:
    shards = _shards(shapes, sizes["dtype"].itemsize, max_shard_bytes)
    generator = torch.Generator().manual_seed(sizes["seed"])
    file_of: dict[str, str] = {}
    num_bytes = 0
    for idx, own in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{idx:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(name, shape, sizes, generator) for name, shape in own.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        file_of |= dict.fromkeys(tensors, file)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    (directory / INDEX_FILE).unlink(missing_ok=True)
    if len(shards) > 1:
        _write_json(directory / INDEX_FILE, {"metadata": {"total_size": num_bytes}, "weight_map": file_of})


def _shards(shapes: Iterable[tuple[str, Shape]], element_bytes: int, max_shard_bytes: int) -> list[dict[str, Shape]]:
    shards: list[dict[str, Shape]] = [{}]
    room = max_shard_bytes
    for name, shape in shapes:
        num_bytes = math.prod(shape) * element_bytes
        if num_bytes > room and shards[-1]:
            shards.append({})
            room = max_shard_bytes
        shards[-1][name] = shape
        room -= num_bytes
    return shards


def _random(name: str, shape: Shape, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """Norms are one, biases small, embeddings of unit variance, matrices of 1 / fan-in.

    What adds to the residual stream is scaled down by sqrt(2 L), as GPT-2 starts: without it errors of
    rounding grow from layer to layer, and bfloat16 would not show what it shows of trained models.
    """
    if len(shape) == 1 and not name.endswith("bias"):
        return torch.ones(shape, dtype=sizes["dtype"])
    variance = BIAS**2 if len(shape) == 1 else 1.0 if name == EMBEDDING else 1 / shape[1]
    if name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight")):
        variance /= 2 * sizes["num_layers"]
    return torch.randn(shape, generator=generator).mul_(math.sqrt(variance)).to(sizes["dtype"])
