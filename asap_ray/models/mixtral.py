"""Mixtral: plain grouped-query attention, every layer MoE, softmax over the chosen experts."""

from __future__ import annotations

from pathlib import Path

from asap_ray.models.config import ModelConfig, TensorNames, read_sizes
from asap_ray.models.fields import Fields
from asap_ray.models.gqa import GroupedQuery
from asap_ray.models.router import SoftmaxRouting


def read(fields: Fields, directory: Path) -> ModelConfig:
    """See `read_config`."""
    sizes = read_sizes(fields, directory)
    fields.only("sliding_window")
    fields.only("norm_topk_prob", True)
    config = ModelConfig(
        **sizes,
        attention=GroupedQuery.read(fields, sizes["hidden"]),
        num_experts=fields.size(fields.one_of("num_experts", "num_local_experts")),
        # The softmax of the chosen logits is the chosen part of the whole softmax, scaled to sum to 1.
        routing=SoftmaxRouting(top_k=fields.size("num_experts_per_tok"), normalise=True),
        moe_intermediate=fields.size("intermediate_size"),
        moe_layers=tuple(range(sizes["num_layers"])),
        dense_intermediate=0,
        names=TensorNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
    )
    fields.refuse_the_rest()
    return config
