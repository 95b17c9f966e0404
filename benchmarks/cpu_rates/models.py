"""Two small models whose matrices are as wide as one expert's share of a core's cache; made by `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers

SIZES: Final[dict[str, Any]] = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "intermediate_size": 1536,
    "tie_word_embeddings": False,
    "max_position_embeddings": 16384,
}

MODELS: Final[dict[str, dict[str, Any]]] = {
    "Qwen3Moe": {**SIZES, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "norm_topk_prob": True},
    "DeepseekV3": {
        **SIZES,
        "num_key_value_heads": 8,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 256,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
    },
}
"""By family: 138.7 and 140.6 M parameters."""


def make(family: str, directory: Path) -> None:
    """A random checkpoint, stored in bfloat16, unless it is there."""
    if (directory / "config.json").exists():
        return
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**MODELS[family])
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for name, weight in model.named_parameters():
        if name.endswith("mlp.gate.weight"):
            weight.data.normal_(0, 0.05)  # experts differ in load, as trained ones do
    model.to(torch.bfloat16).save_pretrained(directory)
