"""GLM-4.5-MoE: grouped-query attention that turns part of each head, and DeepSeek-V3's experts."""

from __future__ import annotations

from pathlib import Path

from asap_ray.models.config import ModelConfig, read_sizes
from asap_ray.models.deepseek import read_experts
from asap_ray.models.fields import Fields
from asap_ray.models.gqa import GroupedQuery


def read(fields: Fields, directory: Path) -> ModelConfig:
    """See `read_config`."""
    sizes = read_sizes(fields, directory)
    attention = GroupedQuery.read(
        fields,
        sizes["hidden"],
        partial_rotary=0.5,
        qkv_bias=fields.flag("attention_bias"),
        qk_norm=fields.flag("use_qk_norm"),
    )
    config = ModelConfig(**sizes, attention=attention, **read_experts(fields, sizes["num_layers"]))
    fields.refuse_the_rest()
    return config
