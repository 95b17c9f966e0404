"""A config.json is read whole or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.models.config import ModelConfig
from asap_ray.models.families import read_config
from asap_ray.models.gqa import GroupedQuery
from asap_ray.models.rope import Yarn
from asap_ray.spec import ModelSpec

PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 43,
    "decoder_sparse_step": 1,
    "eos_token_id": 45,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def read(directory: Path, changes: dict[str, Any], removed: tuple[str, ...] = ()) -> ModelConfig:
    """Read the published configuration with changes."""
    content = {key: value for key, value in {**PUBLISHED, **changes}.items() if key not in removed}
    (directory / "config.json").write_text(json.dumps(content))
    return read_config(directory)


def attention_of(config: ModelConfig) -> GroupedQuery:
    """Qwen3's kind of attention."""
    assert isinstance(config.attention, GroupedQuery)
    return config.attention


def test_published_configuration_is_the_30b_model(tmp_path: Path) -> None:
    """Qwen3-30B-A3B has 48 MoE layers of 128 experts, 8 a token."""
    config = read(tmp_path, {})

    assert config.spec == ModelSpec(num_layers=48, hidden=2048, num_experts=128, top_k=8)


def test_both_generations_of_keys_are_one_configuration(tmp_path: Path) -> None:
    """`transformers` 5 renamed the experts, the rotary settings and the type; nothing else changes."""
    old = read(tmp_path, {})
    new = read(
        tmp_path,
        {
            "num_local_experts": 128,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "dtype": "bfloat16",
        },
        removed=("num_experts", "rope_theta", "rope_scaling", "torch_dtype"),
    )

    assert new == old


def test_generation_config_has_the_last_word_on_end_tokens(tmp_path: Path) -> None:
    """Any of the ids in generation_config.json ends an answer."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [45, 43], "temperature": 0.6}')

    assert read(tmp_path, {}).eos_token_ids == (45, 43)


def test_dense_layers_are_not_counted_as_moe(tmp_path: Path) -> None:
    """Every second layer is MoE, but layer 3 was made dense."""
    config = read(tmp_path, {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]})

    assert config.moe_layers == (1, 5, 7)


def test_head_dim_defaults_to_its_share_of_hidden(tmp_path: Path) -> None:
    """As in `transformers`: hidden / heads where head_dim is missing."""
    assert attention_of(read(tmp_path, {}, removed=("head_dim",))).head_dim == 2048 // 32


def test_the_coder_model_says_more_and_means_the_same(tmp_path: Path) -> None:
    """Qwen3-Coder-30B-A3B writes down what others leave out."""
    coder = {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True}

    assert read(tmp_path, coder) == read(tmp_path, {})


def test_long_contexts_are_yarn(tmp_path: Path) -> None:
    """As Qwen3's documentation says to stretch 32k positions to 128k."""
    config = read(
        tmp_path, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    )

    assert attention_of(config).rope.yarn == Yarn(factor=4.0, original_positions=32768.0)


def test_fp8_weights_come_in_blocks(tmp_path: Path) -> None:
    """As Qwen3-30B-A3B-FP8 says it."""
    quantised = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}

    assert read(tmp_path, {"quantization_config": quantised}).fp8_block == (128, 128)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "qwen2_moe"),
        ("architectures", ["Qwen3MoeForSequenceClassification"]),
        ("use_sliding_window", True),
        ("hidden_act", "gelu"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}),
        (
            "rope_scaling",
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 9, "truncate": False},
        ),
        ("use_qk_norm", False),
        ("quantization_config", {"quant_method": "fp8"}),
        ("quantization_config", {"quant_method": "awq", "bits": 4}),
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": [128, 0]}),
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": [1, 1], "activation_scheme": "static"}),
        ("shared_expert_intermediate_size", 512),
        ("norm_topk_prob", "yes"),
        ("hidden_size", -1),
        ("vocab_size", True),
        ("rms_norm_eps", 0),
        ("mlp_only_layers", 3),
        ("eos_token_id", "</s>"),
        ("rope_theta", "1e6"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    """The message names the key and its value."""
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, {key: value})

    assert f"{key}={value!r}" in str(refusal.value)


@pytest.mark.parametrize("key", ["hidden_size", "num_experts", "num_experts_per_tok", "rope_theta", "vocab_size"])
def test_a_missing_size_is_refused_by_name(tmp_path: Path, key: str) -> None:
    """No size is guessed."""
    with pytest.raises(ConfigError, match=key.replace("num_experts", "num_(local_)?experts")):
        read(tmp_path, {}, removed=(key,))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads=5"),
        ({"head_dim": 63}, "head_dim=63"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok=129"),
        ({"eos_token_id": 151936}, "151936"),
        ({"decoder_sparse_step": 49}, "no layer is MoE"),
        ({"num_local_experts": 64}, "contradicts"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "contradicts"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    """Sizes that cannot go together are named before any weight is read."""
    with pytest.raises(ConfigError, match=match):
        read(tmp_path, changes)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_directory_without_a_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    """Missing, broken, or not an object."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_new_key_that_says_nothing_is_accepted(tmp_path: Path) -> None:
    """Null, false and empty cannot change an answer."""
    assert read(tmp_path, {"new_feature": None, "other": False, "third": []}) == read(tmp_path, {})
