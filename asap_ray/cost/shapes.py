"""What a model costs on any device: operations and bytes a token, from its public configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asap_ray.errors import ConfigError

MULTIPLY_ADD: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model. Rates are per layer; every layer is charged as a MoE layer, as the fit to the paper is."""

    name: str
    num_layers: int
    hidden: int
    num_experts: int
    top_k: int
    moe_intermediate: int
    token_flops: float  # attention: projections of one token, indexer included
    pair_flops: float  # attention: one (query, key) pair of the causal half
    attention_params: float  # weights of one layer that are not routed experts
    kv_bytes: int  # of one token in one layer
    vocab_size: int
    num_kv_heads: int = 1  # over which a group's ranks divide keys and values; 1: MLA's latent is on every rank
    num_dense_layers: int = 0  # without experts; they count for memory alone
    dense_intermediate: int = 0
    weight_bytes: int = 1  # INT8 (W8A8): BF16 experts of the paper's model do not fit its 16 devices

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer: gate, up and down."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def moe_token_flops(self) -> float:
        """Routed experts of one token in one layer."""
        return float(MULTIPLY_ADD * self.top_k * self.expert_params)


def _gqa(name: str, layers: tuple[int, int, int], heads: tuple[int, int, int], experts: tuple[int, int, int]) -> Shape:
    """Grouped-query attention.

    Args:
        name: of the preset.
        layers: their number, hidden size, vocabulary.
        heads: query heads, key-value heads, head size.
        experts: their number, top_k, intermediate size.
    """
    num_layers, hidden, vocab_size = layers
    num_heads, num_kv_heads, head_dim = heads
    num_experts, top_k, moe_intermediate = experts
    params = 2 * hidden * head_dim * (num_heads + num_kv_heads)
    return Shape(
        name=name,
        num_layers=num_layers,
        hidden=hidden,
        num_experts=num_experts,
        top_k=top_k,
        moe_intermediate=moe_intermediate,
        token_flops=float(MULTIPLY_ADD * params),
        pair_flops=float(MULTIPLY_ADD * num_heads * 2 * head_dim),
        attention_params=float(params),
        kv_bytes=2 * 2 * num_kv_heads * head_dim,
        vocab_size=vocab_size,
        num_kv_heads=num_kv_heads,
    )


def deepseek_v32() -> Shape:
    """DeepSeek-V3.2: MLA as dense multi-head attention in prefill, a lightning indexer over every pair (2.2.1)."""
    mla_flops, indexer_flops = 374.2e6, 27.9e6
    return Shape(
        name="deepseek-v3.2",
        num_layers=61,
        hidden=7168,
        num_experts=256,
        top_k=8,
        moe_intermediate=2048,
        token_flops=mla_flops + indexer_flops,
        pair_flops=float(MULTIPLY_ADD * (128 * (192 + 128) + 64 * 128)),
        attention_params=(mla_flops + indexer_flops) / MULTIPLY_ADD + 3 * 7168 * 2048,  # and one shared expert
        kv_bytes=2 * (512 + 64) + 128,
        vocab_size=129280,
        num_dense_layers=3,
        dense_intermediate=18432,
    )


def kimi_k2() -> Shape:
    """Kimi-K2: DeepSeek-V3's architecture with half its heads, 384 experts, and no indexer."""
    hidden, heads, q_lora, kv_lora, nope, rope, value = 7168, 64, 1536, 512, 128, 64, 128
    params = (
        hidden * q_lora
        + q_lora * heads * (nope + rope)
        + hidden * (kv_lora + rope)
        + kv_lora * heads * (nope + value)
        + heads * value * hidden
    )
    return Shape(
        name="kimi-k2",
        num_layers=61,
        hidden=hidden,
        num_experts=384,
        top_k=8,
        moe_intermediate=2048,
        token_flops=float(MULTIPLY_ADD * params),
        pair_flops=float(MULTIPLY_ADD * heads * (nope + rope + value)),
        attention_params=float(params + 3 * hidden * 2048),
        kv_bytes=2 * (kv_lora + rope),
        vocab_size=163840,
        num_dense_layers=1,
        dense_intermediate=18432,
    )


def qwen3_235b() -> Shape:
    """Qwen3-235B-A22B."""
    return _gqa("qwen3-235b-a22b", (94, 4096, 151936), (64, 4, 128), (128, 8, 1536))


def mixtral_8x22b() -> Shape:
    """Mixtral 8x22B: few, large experts."""
    return _gqa("mixtral-8x22b", (56, 6144, 32768), (48, 8, 128), (8, 2, 16384))


SHAPES: Final = {shape.name: shape for shape in (deepseek_v32(), kimi_k2(), qwen3_235b(), mixtral_8x22b())}


def shape_of(name: str) -> Shape:
    """A preset by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in SHAPES:
        raise ConfigError(f"unknown model {name!r}; presets are {', '.join(SHAPES)}")
    return SHAPES[name]
