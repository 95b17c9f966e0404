"""config.json of a random model: a few sizes are chosen, the others stand to them as in published models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict

import torch

from asap_ray.errors import ConfigError
from asap_ray.models.families import FAMILIES
from asap_ray.models.random_tokenizer import SPECIAL_TOKENS


class Sizes(TypedDict):
    """What is chosen; names as in `ModelConfig`."""

    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # of grouped-query attention
    head_dim: int  # of latent attention: of values, and of queries beside what is rotated
    num_experts: int
    top_k: int
    moe_intermediate: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: torch.dtype  # as stored
    seed: int


def config_of(family: str, sizes: Sizes) -> dict[str, Any]:
    """config.json of a family.

    Raises:
        ConfigError: there is no such family.
    """
    if family not in _OF_FAMILY:
        raise ConfigError(f"family={family!r} must be one of {', '.join(_OF_FAMILY)}")
    shared = {
        "architectures": [FAMILIES[family].architecture],
        "model_type": family,
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "hidden_act": "silu",
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["moe_intermediate"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "num_attention_heads": sizes["num_heads"],
        "num_experts_per_tok": sizes["top_k"],
        "num_hidden_layers": sizes["num_layers"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1e6,
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        "torch_dtype": str(sizes["dtype"]).removeprefix("torch."),
        "vocab_size": sizes["vocab_size"],
    }
    return shared | _OF_FAMILY[family](sizes)


def _qwen3_moe(sizes: Sizes) -> dict[str, Any]:
    return {
        "decoder_sparse_step": 1,
        "head_dim": sizes["head_dim"],
        "mlp_only_layers": [],
        "moe_intermediate_size": sizes["moe_intermediate"],
        "norm_topk_prob": True,
        "num_experts": sizes["num_experts"],
        "use_sliding_window": False,
    }


def _mixtral(sizes: Sizes) -> dict[str, Any]:
    return {"head_dim": sizes["head_dim"], "num_local_experts": sizes["num_experts"], "sliding_window": None}


def _grouped_experts(sizes: Sizes) -> dict[str, Any]:
    """One layer dense, as wide as what a token meets of the experts; one shared expert; no groups."""
    return {
        "first_k_dense_replace": 1,
        "intermediate_size": (sizes["top_k"] + 1) * sizes["moe_intermediate"],
        "moe_intermediate_size": sizes["moe_intermediate"],
        "n_group": 1,
        "n_routed_experts": sizes["num_experts"],
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        "routed_scaling_factor": 2.5,
        "topk_group": 1,
    }


def _glm4_moe(sizes: Sizes) -> dict[str, Any]:
    own = {"attention_bias": True, "partial_rotary_factor": 0.5, "use_qk_norm": True, "head_dim": sizes["head_dim"]}
    return _grouped_experts(sizes) | own


def _kimi_k2(sizes: Sizes) -> dict[str, Any]:
    """With heads of 128, the published latents: 512 and 64 that are rotated."""
    head_dim, positions = sizes["head_dim"], sizes["max_position_embeddings"]
    return _grouped_experts(sizes) | {
        "kv_lora_rank": 4 * head_dim,
        "moe_layer_freq": 1,
        "num_key_value_heads": sizes["num_heads"],
        "q_lora_rank": max(1, sizes["hidden"] // 4),
        "qk_nope_head_dim": head_dim,
        "qk_rope_head_dim": head_dim // 2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": max(1, positions // 32),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rope_theta": 1e4,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "v_head_dim": head_dim,
    }


def _deepseek_v3(sizes: Sizes) -> dict[str, Any]:
    """Kimi-K2's, and a token's experts come out of half of the groups where there are enough."""
    size, rest = divmod(sizes["num_experts"], 4)
    has_groups = not rest and size >= 2 and sizes["top_k"] <= 2 * size
    return _kimi_k2(sizes) | ({"n_group": 4, "topk_group": 2} if has_groups else {})


def _deepseek_v32(sizes: Sizes) -> dict[str, Any]:
    """The indexer chooses as many of the longest prompt's tokens as the published one: 2048 of 163,840."""
    return _deepseek_v3(sizes) | {
        "index_head_dim": sizes["head_dim"],
        "index_n_heads": max(16, sizes["num_heads"] // 2),
        "index_topk": max(1, sizes["max_position_embeddings"] // 80),
    }


_OF_FAMILY: Final[Mapping[str, Callable[[Sizes], dict[str, Any]]]] = {
    "deepseek_v3": _deepseek_v3,
    "deepseek_v32": _deepseek_v32,
    "glm4_moe": _glm4_moe,
    "kimi_k2": _kimi_k2,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}
