"""The tensors a checkpoint has, as its configuration makes them: missing and unknown ones are refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from asap_ray.errors import ConfigError
from asap_ray.models.config import ModelConfig
from asap_ray.models.vocabulary import EMBEDDING, HEAD
from asap_ray.models.weights import SCALE, Shape

_FREQUENCIES: Final = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""A buffer that old versions of `transformers` saved: config.json says it all."""

_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")


def tensors_of(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor that is read, in the order of the layers; scales of FP8 are not among them."""
    yield EMBEDDING, (config.vocab_size, config.hidden)
    for layer_idx in range(config.num_layers):
        layer = f"model.layers.{layer_idx}"
        yield f"{layer}.input_layernorm.weight", (config.hidden,)
        yield from config.attention.tensors(f"{layer}.self_attn", config.hidden)
        yield f"{layer}.post_attention_layernorm.weight", (config.hidden,)
        if layer_idx in config.moe_layers:
            yield from _experts(f"{layer}.{config.names.block}", config)
        else:
            yield from _dense(f"{layer}.mlp", config.hidden, config.dense_intermediate)
    yield "model.norm.weight", (config.hidden,)
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, config.hidden)


def _experts(block: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Router, routed experts and shared ones of a layer."""
    hidden, width, names = config.hidden, config.moe_intermediate, config.names
    yield f"{block}.gate.weight", (config.num_experts, hidden)
    if config.routing.bias:
        yield f"{block}.{config.routing.bias}", (config.num_experts,)
    for expert in range(config.num_experts):
        yield f"{block}.experts.{expert}.{names.gate}.weight", (width, hidden)
        yield f"{block}.experts.{expert}.{names.up}.weight", (width, hidden)
        yield f"{block}.experts.{expert}.{names.down}.weight", (hidden, width)
    if config.shared_intermediate:
        yield from _dense(f"{block}.shared_experts", hidden, config.shared_intermediate)


def _dense(name: str, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj.weight", (width, hidden)
    yield f"{name}.up_proj.weight", (width, hidden)
    yield f"{name}.down_proj.weight", (hidden, width)


def check_names(names: Collection[str], config: ModelConfig, directory: Path) -> None:
    """Compare the tensors of a checkpoint with those its configuration makes, before any of them is read.

    What needs no reading may be there too: layers that guess further tokens, where config.json says how many; the
    head of tied embeddings; frequencies of rotary embeddings.

    Raises:
        ConfigError: a tensor is missing, or is not known; names the first.
    """
    known = dict(tensors_of(config))
    if missing := next((name for name in known if name not in names), None):
        raise ConfigError(f"{directory} has no tensor {missing!r}")
    strange = sorted(name for name in names if name not in known and not _may_be_there(name, known, config))
    if strange:
        others = f" and {len(strange) - 1} others" if strange[1:] else ""
        raise ConfigError(
            f"{directory} has a tensor {strange[0]!r}{others} that config.json does not explain; "
            "to leave it out may change the model's answers"
        )


def _may_be_there(name: str, known: Collection[str], config: ModelConfig) -> bool:
    """Scales of a matrix in FP8, and what needs no reading."""
    is_scale = config.fp8_block is not None and name.removesuffix(SCALE) in known
    layer = _LAYER.match(name)
    guesses = layer is not None and 0 <= int(layer[1]) - config.num_layers < config.num_guessing
    is_tied_head = name == HEAD and config.tie_word_embeddings
    return is_scale or guesses or is_tied_head or _FREQUENCIES.fullmatch(name) is not None
