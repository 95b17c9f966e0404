"""The published configurations of DeepSeek-V3, V3.2, Kimi-K2, GLM-4.5 and Mixtral, and what is refused of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asap_ray.errors import ConfigError
from asap_ray.models.config import ModelConfig
from asap_ray.models.dsa import SparseLatent
from asap_ray.models.families import read_config
from asap_ray.models.gqa import GroupedQuery
from asap_ray.models.mla import Latent
from asap_ray.models.rope import Rope, Yarn
from asap_ray.models.router import GroupedRouting
from asap_ray.spec import ModelSpec

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}

V32: dict[str, Any] = {
    **V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "model_type": "deepseek_v32",
    "quantization_config": {**V3["quantization_config"], "scale_fmt": "ue8m0"},
}

KIMI: dict[str, Any] = {
    **V3,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "model_type": "kimi_k2",
    "n_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "pretraining_tp": 1,
    "rope_scaling": {**V3["rope_scaling"], "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0},
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "seq_aux": True,
    "topk_group": 1,
    "vocab_size": 163840,
}

GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 3,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 92,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 151552,
}

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def read(directory: Path, published: dict[str, Any], changes: dict[str, Any] | None = None) -> ModelConfig:
    """Read a published configuration with changes."""
    (directory / "config.json").write_text(json.dumps({**published, **(changes or {})}))
    return read_config(directory)


@pytest.mark.parametrize(
    ("published", "spec"),
    [
        (V3, ModelSpec(num_layers=58, hidden=7168, num_experts=256, top_k=8)),
        (V32, ModelSpec(num_layers=58, hidden=7168, num_experts=256, top_k=8)),
        (KIMI, ModelSpec(num_layers=60, hidden=7168, num_experts=384, top_k=8)),
        (GLM, ModelSpec(num_layers=89, hidden=5120, num_experts=160, top_k=8)),
        (MIXTRAL, ModelSpec(num_layers=32, hidden=4096, num_experts=8, top_k=2)),
    ],
    ids=["v3", "v3.2", "kimi", "glm", "mixtral"],
)
def test_published_configurations_are_read(tmp_path: Path, published: dict[str, Any], spec: ModelSpec) -> None:
    """What the engine is told of each; dense layers are not counted."""
    assert read(tmp_path, published).spec == spec


def test_latent_attention_of_v3(tmp_path: Path) -> None:
    """671 B parameters, and 576 numbers a token and layer in the cache."""
    attention = read(tmp_path, V3).attention

    yarn = Yarn(factor=40.0, original_positions=4096.0, mscale=1.0, mscale_all_dim=1.0)
    assert attention == Latent(
        num_heads=128,
        query_rank=1536,
        latent_rank=512,
        nope_dim=128,
        value_dim=128,
        rope=Rope(dim=64, theta=1e4, yarn=yarn),
    )
    assert attention.kept_dim == 576


def test_the_indexer_of_v32(tmp_path: Path) -> None:
    """64 heads choose 2048 tokens; all else is DeepSeek-V3's."""
    latent = read(tmp_path, V3).attention
    assert isinstance(latent, Latent)

    assert read(tmp_path, V32).attention == SparseLatent(latent=latent, num_heads=64, head_dim=128, top_k=2048)


def test_routing_of_kimi(tmp_path: Path) -> None:
    """One group of 384 experts."""
    assert read(tmp_path, KIMI).routing == GroupedRouting(
        num_experts=384, top_k=8, normalise=True, scale=2.827, num_groups=1, top_groups=1
    )


def test_glm_turns_half_of_each_head(tmp_path: Path) -> None:
    """64 of 128 dimensions; queries and keys are normalised and have a bias, the output none."""
    assert read(tmp_path, GLM).attention == GroupedQuery(
        num_heads=96, num_kv_heads=8, head_dim=128, rope=Rope(dim=64, theta=1e6), qkv_bias=True, qk_norm=True
    )


@pytest.mark.parametrize(
    ("published", "key", "value"),
    [
        (V3, "scoring_func", "softmax"),
        (V3, "topk_method", "greedy"),
        (V3, "moe_layer_freq", 2),
        (V3, "attention_bias", True),
        (V3, "rope_interleave", False),
        (V3, "num_key_value_heads", 64),
        (V3, "qk_head_dim", 128),
        (V3, "index_topk", 2048),
        (V3, "quantization_config", {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
        (V3, "rope_scaling", {"type": "longrope", "factor": 4.0}),
        (V3, "rope_scaling", {"type": "yarn", "factor": None, "original_max_position_embeddings": 4096}),
        (V3, "logit_scale", 0),
        (V32, "rope_interleave", False),
        (V32, "mlp_layer_types", ["sparse"] * 61),
        (V32, "layer_types", ["full_attention"] * 61),
        (MIXTRAL, "sliding_window", 4096),
        (MIXTRAL, "norm_topk_prob", False),
        (GLM, "use_sliding_window", True),
        (GLM, "hidden_act", "gelu"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, published: dict[str, Any], key: str, value: object
) -> None:
    """The message names the key and its value."""
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, published, {key: value})

    assert f"{key}={value!r}" in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_group": 7}, "n_group=7"),
        ({"n_group": 256}, "n_group=256"),
        ({"topk_group": 9}, "topk_group=9"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok=129"),
        ({"v_head_dim": 193}, "v_head_dim=193"),
        ({"index_head_dim": 32}, "index_head_dim=32"),
        ({"first_k_dense_replace": 61}, "no layer is MoE"),
        ({"first_k_dense_replace": None}, "first_k_dense_replace"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"n_shared_experts": None}, "n_shared_experts"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}}, "original_max_pos"),
        ({"qk_rope_head_dim": 63}, "63"),
    ],
    ids=str,
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    """Sizes that cannot go together are named before any weight is read."""
    with pytest.raises(ConfigError, match=match):
        read(tmp_path, V32, changes)


def test_the_supported_families_are_named(tmp_path: Path) -> None:
    """Whoever brings another one learns which there are."""
    with pytest.raises(ConfigError, match=r"model_type='llama'.*deepseek_v32.*qwen3_moe"):
        read(tmp_path, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
