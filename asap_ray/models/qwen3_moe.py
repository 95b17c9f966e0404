"""Qwen3-MoE: grouped-query attention with norms of queries and keys, top-k softmax routing, no shared experts."""

from __future__ import annotations

from pathlib import Path

from asap_ray.models.config import ModelConfig, read_sizes
from asap_ray.models.fields import Fields
from asap_ray.models.gqa import GroupedQuery
from asap_ray.models.router import SoftmaxRouting


def read(fields: Fields, directory: Path) -> ModelConfig:
    """See `read_config`."""
    sizes = read_sizes(fields, directory)
    fields.only("use_sliding_window", False)
    fields.only("shared_expert_intermediate_size", 0)
    fields.only("use_qk_norm", True)
    has_bias = fields.flag("attention_bias")
    moe_layers = _moe_layers(fields, sizes["num_layers"])
    is_all_moe = len(moe_layers) == sizes["num_layers"]
    config = ModelConfig(
        **sizes,
        attention=GroupedQuery.read(fields, sizes["hidden"], qkv_bias=has_bias, out_bias=has_bias, qk_norm=True),
        num_experts=fields.size(fields.one_of("num_experts", "num_local_experts")),
        routing=SoftmaxRouting(top_k=fields.size("num_experts_per_tok"), normalise=fields.flag("norm_topk_prob")),
        moe_intermediate=fields.size("moe_intermediate_size"),
        moe_layers=moe_layers,
        dense_intermediate=fields.size("intermediate_size", 0 if is_all_moe else None),
    )
    fields.refuse_the_rest()
    return config


def _moe_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Every `decoder_sparse_step`-th layer, but those of `mlp_only_layers`."""
    step, dense = fields.size("decoder_sparse_step", 1), fields.take("mlp_only_layers", [])
    if not isinstance(dense, list) or any(type(idx) is not int for idx in dense):
        raise fields.wrong("mlp_only_layers", "a list of layer indices")
    return tuple(idx for idx in range(num_layers) if idx not in dense and (idx + 1) % step == 0)
