"""FP8 weights with a scale for each block of 128 x 128, as DeepSeek-V3 is published, are what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from asap_ray.errors import ConfigError
from asap_ray.models.host_kernels import HOST
from asap_ray.models.model import load_model
from asap_ray.models.weights import Checkpoint, Shard
from tests.models.divided import batch_of, random_prompts, run_divided

Make = Callable[..., tuple[Path, Any]]
SHAPE = (300, 200)
BLOCK = (128, 128)


def e4m3(byte: int) -> float:
    """What eight bits mean: a sign, four bits of exponent with bias 7, three of fraction."""
    sign, exponent, fraction = -1.0 if byte >> 7 else 1.0, byte >> 3 & 15, byte & 7
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


E4M3 = np.array([e4m3(byte) for byte in range(256)], dtype=np.float32)


def meaning_of(stored: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The definition, by table: each byte's number times the scale of its block."""
    numbers = E4M3[stored.view(torch.uint8).numpy()]
    scales = scale.numpy().repeat(block[0], 0).repeat(block[1], 1)[: stored.shape[0], : stored.shape[1]]
    return torch.from_numpy(numbers * scales)


def quantise(matrix: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest number of a block becomes 448, the largest of e4m3."""
    scale = torch.zeros(*(-(-num // size) for num, size in zip(matrix.shape, block, strict=True)))
    stored = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn)
    for row, rows in enumerate(matrix.split(block[0])):
        for column, part in enumerate(rows.split(block[1], dim=1)):
            scale[row, column] = part.abs().max() / 448
            own = slice(row * block[0], row * block[0] + len(rows)), slice(column * block[1], (column + 1) * block[1])
            stored[own] = (part / scale[row, column]).to(torch.float8_e4m3fn)
    return stored, scale


@pytest.fixture
def quantised(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A matrix whose last blocks are not whole, of every byte that is a number, and what it means."""
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, SHAPE, generator=generator, dtype=torch.uint8)
    bytes_[(bytes_ & 127) == 127] = 0  # the two that are not numbers
    stored, scale = bytes_.view(torch.float8_e4m3fn), torch.rand(3, 2, generator=generator) + 0.1
    save_file({"a": stored, "a_scale_inv": scale}, tmp_path / "model.safetensors")
    return tmp_path, meaning_of(stored, scale, BLOCK)


def test_a_whole_matrix(quantised: tuple[Path, torch.Tensor]) -> None:
    """Every byte times its block's scale."""
    directory, expected = quantised

    assert torch.equal(Checkpoint(directory, BLOCK).part("a", SHAPE), expected)


@pytest.mark.parametrize("own", [slice(0, 1), slice(100, 200), slice(127, 129), slice(150, None)], ids=str)
def test_parts_that_cut_blocks(quantised: tuple[Path, torch.Tensor], own: slice) -> None:
    """A rank's rows or columns begin and end where they like."""
    directory, expected = quantised
    checkpoint = Checkpoint(directory, BLOCK)

    assert torch.equal(checkpoint.part("a", SHAPE, rows=own), expected[own])
    assert torch.equal(checkpoint.part("a", SHAPE, columns=own), expected[:, own])


def test_shards_of_all_ranks_are_the_whole(quantised: tuple[Path, torch.Tensor]) -> None:
    """Both ways to split a matrix."""
    directory, expected = quantised
    shards = [Shard(Checkpoint(directory, BLOCK), rank, 3, torch.float32, HOST) for rank in range(3)]

    assert torch.equal(torch.cat([s.column_parallel("a", SHAPE) for s in shards], dim=1), expected.T)
    assert torch.equal(torch.cat([s.row_parallel("a", SHAPE) for s in shards], dim=0), expected.T)


def test_fp8_without_a_word_in_the_configuration_is_refused(quantised: tuple[Path, torch.Tensor]) -> None:
    """The size of a block cannot be guessed."""
    with pytest.raises(ConfigError, match="float8_e4m3fn"):
        Checkpoint(quantised[0]).part("a", SHAPE)


def test_scales_of_another_block_are_refused(quantised: tuple[Path, torch.Tensor]) -> None:
    """Which tensor, how many scales it has, and how many were promised."""
    with pytest.raises(ConfigError, match=r"a_scale_inv' has shape \(3, 2\), config.json says \(5, 4\)"):
        Checkpoint(quantised[0], (64, 64)).part("a", SHAPE)


def is_quantised(name: str, tensor: torch.Tensor) -> bool:
    """Published checkpoints leave embeddings, heads, routers and norms alone."""
    kept = ("embed_tokens", "lm_head", ".gate.", "weights_proj")
    return tensor.ndim == 2 and not any(part in name for part in kept)


@pytest.mark.parametrize(
    ("family", "tp"), [("DeepseekV3", 1), ("DeepseekV3", 2), ("DeepseekV32", 2), ("Qwen3Moe", 2), ("Glm4Moe", 1)]
)
def test_a_quantised_model_answers_as_its_meaning_does(
    transformers_model: Make, tmp_path: Path, family: str, tp: int
) -> None:
    """The same model twice: in FP8 blocks, and in the float32 numbers those stand for."""
    directory, _ = transformers_model(family)
    config, block = json.loads((directory / "config.json").read_text()), (16, 8)
    tensors = load_file(directory / "model.safetensors")
    narrow, wide = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if is_quantised(name, tensor):
            narrow[name], narrow[f"{name}_scale_inv"] = quantise(tensor, block)
            wide[name] = meaning_of(narrow[name], narrow[f"{name}_scale_inv"], block)
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(block)}
    for folder, weights, extra in (("narrow", narrow, {"quantization_config": fp8}), ("wide", wide, {})):
        (tmp_path / folder).mkdir()
        save_file(weights, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(json.dumps({**config, **extra}))
    batch = batch_of(random_prompts([30, 5], 301))

    stored, meant = (run_divided(load_model(tmp_path / f), batch, tp=tp)[0].logits[0] for f in ("narrow", "wide"))

    assert torch.equal(stored, meant)
