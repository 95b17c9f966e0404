"""DeepSeek-V3, Kimi-K2 and DeepSeek-V3.2: latent attention, sparse in V3.2; grouped sigmoid routing, shared experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asap_ray.models.config import Attention, ModelConfig, read_sizes
from asap_ray.models.dsa import SparseLatent
from asap_ray.models.fields import Fields
from asap_ray.models.mla import Latent
from asap_ray.models.router import GroupedRouting


def read(fields: Fields, directory: Path) -> ModelConfig:
    """DeepSeek-V3 and Kimi-K2; see `read_config`."""
    return _read(fields, directory, read_latent(fields))


def read_sparse(fields: Fields, directory: Path) -> ModelConfig:
    """DeepSeek-V3.2; see `read_config`."""
    fields.only("layer_types", ["indexed_attention"] * fields.num_layers())
    attention = SparseLatent(
        latent=read_latent(fields),
        num_heads=fields.size("index_n_heads"),
        head_dim=fields.size("index_head_dim"),
        top_k=fields.size("index_topk"),
    )
    return _read(fields, directory, attention)


def _read(fields: Fields, directory: Path, attention: Attention) -> ModelConfig:
    sizes = read_sizes(fields, directory)
    config = ModelConfig(**sizes, attention=attention, **read_experts(fields, sizes["num_layers"]))
    fields.refuse_the_rest()
    return config


def read_latent(fields: Fields) -> Latent:
    """The sizes of latent attention."""
    fields.only("attention_bias", False)
    fields.only("rope_interleave", True)
    nope_dim, rope_dim = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    fields.only("qk_head_dim", nope_dim + rope_dim)
    fields.only("head_dim", rope_dim, nope_dim + rope_dim)  # `transformers` 5 writes the former
    num_heads = fields.size("num_attention_heads")
    fields.only("num_key_value_heads", num_heads)
    return Latent(
        num_heads=num_heads,
        query_rank=fields.count("q_lora_rank", 0),
        latent_rank=fields.size("kv_lora_rank"),
        nope_dim=nope_dim,
        value_dim=fields.size("v_head_dim"),
        rope=fields.rope(rope_dim),
    )


def read_experts(fields: Fields, num_layers: int) -> dict[str, Any]:
    """The fields of `ModelConfig` about experts."""
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("moe_layer_freq", 1)
    fields.only("mlp_bias", False)
    num_dense = min(fields.count("first_k_dense_replace"), num_layers)
    fields.only("mlp_layer_types", ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense))
    width, num_experts = fields.size("moe_intermediate_size"), fields.size("n_routed_experts")
    fields.only("num_local_experts", num_experts)
    return {
        "num_experts": num_experts,
        "routing": GroupedRouting(
            num_experts=num_experts,
            top_k=fields.size("num_experts_per_tok"),
            normalise=fields.flag("norm_topk_prob", default=True),
            scale=fields.number("routed_scaling_factor"),
            num_groups=fields.size("n_group"),
            top_groups=fields.size("topk_group"),
        ),
        "moe_intermediate": width,
        "moe_layers": tuple(range(num_dense, num_layers)),
        "dense_intermediate": fields.size("intermediate_size", None if num_dense else 0),
        "shared_intermediate": width * fields.count("n_shared_experts"),
    }
