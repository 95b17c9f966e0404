"""A tensor that nobody would read is refused, by its name and before any other is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asap_ray.errors import ConfigError
from asap_ray.models.model import load_model
from asap_ray.models.tensors import tensors_of
from tests.models.tiny import FAMILIES

Make = Callable[..., tuple[Path, Any]]
FILE = "model.safetensors"


def changed(source: Path, target: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """A copy of a checkpoint with more tensors, and with other values in its configuration."""
    shutil.copytree(source, target)
    save_file(load_file(source / FILE) | (tensors or {}), target / FILE)
    values = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(values | config))
    return target


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_transformers_is_known(transformers_model: Make, family: str) -> None:
    """Names and shapes of each family are those it saves."""
    directory, _ = transformers_model(family)
    saved = {name: tuple(tensor.shape) for name, tensor in load_file(directory / FILE).items()}

    assert dict(tensors_of(load_model(directory).config)) == saved


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Qwen3Moe", "model.layers.0.self_attn.q_proj.bias"),
        ("Qwen3Moe", "model.layers.1.mlp.shared_expert.up_proj.weight"),
        ("Qwen3Moe", "model.layers.3.input_layernorm.weight"),
        ("Qwen3Moe", "model.layers.1.mlp.experts.10.up_proj.weight"),
        ("Mixtral", "model.layers.0.self_attn.q_norm.weight"),
        ("DeepseekV3", "model.layers.2.self_attn.indexer.wk.weight"),
        ("DeepseekV3", "model.layers.2.self_attn.kv_b_proj.weight_scale_inv"),
        ("Glm4Moe", "model.layers.2.self_attn.o_proj.bias"),
    ],
)
def test_a_tensor_nobody_would_read_is_refused(
    transformers_model: Make, tmp_path: Path, family: str, name: str
) -> None:
    """Biases, experts and layers that config.json does not speak of."""
    directory = changed(transformers_model(family)[0], tmp_path / "model", {name: torch.ones(1)})

    with pytest.raises(ConfigError, match=f"has a tensor '{name}' that config.json does not explain"):
        load_model(directory)


def test_of_many_the_first_is_named(transformers_model: Make, tmp_path: Path) -> None:
    """And how many more there are."""
    more = {f"visual.{n}.weight": torch.ones(1) for n in range(3)}
    directory = changed(transformers_model("Mixtral")[0], tmp_path / "model", more)

    with pytest.raises(ConfigError, match=r"a tensor 'visual\.0\.weight' and 2 others"):
        load_model(directory)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("model.layers.3.eh_proj.weight", {"num_nextn_predict_layers": 1}),
        ("model.layers.4.mlp.experts.0.up_proj.weight", {"num_mtp_layers": 2}),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", {}),
        ("model.rotary_emb.inv_freq", {}),
        ("lm_head.weight", {"tie_word_embeddings": True}),
    ],
)
def test_what_needs_no_reading_may_be_there(
    transformers_model: Make, tmp_path: Path, name: str, config: dict[str, Any]
) -> None:
    """Layers that guess further tokens, as many as config.json says; what follows from others."""
    directory = changed(transformers_model("DeepseekV3")[0], tmp_path / "model", {name: torch.ones(1)}, **config)

    assert load_model(directory).spec.num_layers == 2


def test_more_guessing_layers_than_promised_are_refused(transformers_model: Make, tmp_path: Path) -> None:
    """One is promised, and it is the one after the last."""
    more = {"model.layers.4.eh_proj.weight": torch.ones(1)}
    directory = changed(transformers_model("DeepseekV3")[0], tmp_path / "model", more, num_nextn_predict_layers=1)

    with pytest.raises(ConfigError, match=r"model\.layers\.4\.eh_proj\.weight"):
        load_model(directory)


def test_a_missing_tensor_is_named_before_any_is_read(transformers_model: Make, tmp_path: Path) -> None:
    """config.json speaks of more experts than there are."""
    directory = changed(transformers_model("Mixtral")[0], tmp_path / "model", num_local_experts=11)

    with pytest.raises(
        ConfigError, match=r"has no tensor 'model\.layers\.0\.block_sparse_moe\.experts\.10\.w1\.weight'"
    ):
        load_model(directory)
