"""Tiny configurations of every family, in `transformers`' words."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "intermediate_size": 80,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_experts_per_tok": 3,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,  # so that attention and experts matter beside the embedding
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

TINY: dict[str, Any] = {**SIZES, "moe_intermediate_size": 32, "num_experts": 10, "norm_topk_prob": True}
"""Qwen3-MoE."""

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

GROUPED: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}

LATENT: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "head_dim"},
    **GROUPED,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}

FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": TINY,
    "Mixtral": {**SIZES, "num_local_experts": 10},
    "Glm4Moe": {**SIZES, **GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "DeepseekV3": LATENT,
    # Scores of few heads are often exactly zero together, and who is chosen among equals is nobody's promise.
    "DeepseekV32": {**LATENT, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 16},
}
