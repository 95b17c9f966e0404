"""Ordinary Hugging Face checkpoints of Qwen3-MoE with random weights and a tokenizer, made without `transformers`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Final, TypedDict, Unpack

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from asap_ray.errors import ConfigError
from asap_ray.models.vocabulary import EMBEDDING
from asap_ray.models.weights import INDEX_FILE, SINGLE_FILE

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids are their positions; the first pads, the first and last end an answer."""

BYTES: Final = 256
MAX_MERGES: Final = 7936
"""Merges learned at most; more words than 8192 say little and take long to learn."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Sizes(TypedDict):
    """What `make_random_checkpoint` makes; names as in `ModelConfig`."""

    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    moe_intermediate: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: torch.dtype  # as stored
    seed: int


def tiny() -> Sizes:
    """Half a million parameters: made and run in a moment, for tests."""
    return Sizes(
        hidden=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        num_experts=8,
        top_k=2,
        moe_intermediate=64,
        vocab_size=512,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        dtype=torch.float32,
        seed=0,
    )


def demo() -> Sizes:
    """88 M parameters, 13 M at work on a token: some thousand tokens a second on two CPU cores."""
    return Sizes(
        hidden=512,
        num_layers=6,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        num_experts=32,
        top_k=4,
        moe_intermediate=256,
        vocab_size=8192,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
        seed=0,
    )


def make_random_checkpoint(directory: Path, *, max_shard_bytes: int = 1 << 30, **sizes: Unpack[Sizes]) -> None:
    """Write a checkpoint that `transformers` and asap-ray load like any other.

    The same sizes and seed give the same bytes. config.json comes last: a directory that has one is whole.

    Args:
        directory: made if missing; files of a former checkpoint are overwritten.
        max_shard_bytes: above this the weights are sharded, as large published models are.
        sizes: see `tiny` and `demo`.

    Raises:
        ConfigError: vocab_size is too small for a byte-level tokenizer.
    """
    smallest = BYTES + len(SPECIAL_TOKENS)
    if sizes["vocab_size"] < smallest:
        raise ConfigError(f"vocab_size={sizes['vocab_size']} must be at least {smallest}, the bytes and special tokens")
    directory.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(directory, sizes)
    _write_weights(directory, sizes, max_shard_bytes)
    end_ids = [SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")]
    _write_json(directory / "generation_config.json", {"eos_token_id": end_ids, "pad_token_id": end_ids[1]})
    _write_json(directory / "config.json", _config(sizes))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _config(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "head_dim": sizes["head_dim"],
        "hidden_act": "silu",
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["moe_intermediate"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "mlp_only_layers": [],
        "moe_intermediate_size": sizes["moe_intermediate"],
        "norm_topk_prob": True,
        "num_attention_heads": sizes["num_heads"],
        "num_experts": sizes["num_experts"],
        "num_experts_per_tok": sizes["top_k"],
        "num_hidden_layers": sizes["num_layers"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1e6,
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        "torch_dtype": str(sizes["dtype"]).removeprefix("torch."),
        "use_sliding_window": False,
        "vocab_size": sizes["vocab_size"],
    }


def _shapes(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the checkpoint, in the order of the layers."""
    hidden, head_dim, width = sizes["hidden"], sizes["head_dim"], sizes["moe_intermediate"]
    query, key_value = sizes["num_heads"] * head_dim, sizes["num_kv_heads"] * head_dim
    yield "model.embed_tokens.weight", (sizes["vocab_size"], hidden)
    for layer_idx in range(sizes["num_layers"]):
        layer = f"model.layers.{layer_idx}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (query, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (key_value, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (key_value, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, query)
        yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate.weight", (sizes["num_experts"], hidden)
        for expert in range(sizes["num_experts"]):
            yield f"{layer}.mlp.experts.{expert}.gate_proj.weight", (width, hidden)
            yield f"{layer}.mlp.experts.{expert}.up_proj.weight", (width, hidden)
            yield f"{layer}.mlp.experts.{expert}.down_proj.weight", (hidden, width)
    yield "model.norm.weight", (hidden,)
    if not sizes["tie_word_embeddings"]:
        yield "lm_head.weight", (sizes["vocab_size"], hidden)


def _write_weights(directory: Path, sizes: Sizes, max_shard_bytes: int) -> None:
    shards = _shards(sizes, max_shard_bytes)
    generator = torch.Generator().manual_seed(sizes["seed"])
    file_of: dict[str, str] = {}
    num_bytes = 0
    for idx, shapes in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{idx:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _random(name, shape, sizes, generator) for name, shape in shapes.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        file_of |= dict.fromkeys(tensors, file)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    (directory / INDEX_FILE).unlink(missing_ok=True)
    if len(shards) > 1:
        _write_json(directory / INDEX_FILE, {"metadata": {"total_size": num_bytes}, "weight_map": file_of})


def _shards(sizes: Sizes, max_shard_bytes: int) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = max_shard_bytes
    for name, shape in _shapes(sizes):
        num_bytes = math.prod(shape) * sizes["dtype"].itemsize
        if num_bytes > room and shards[-1]:
            shards.append({})
            room = max_shard_bytes
        shards[-1][name] = shape
        room -= num_bytes
    return shards


def _random(name: str, shape: tuple[int, ...], sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
    """Norms are one, embeddings of unit variance, matrices of 1 / fan-in.

    What adds to the residual stream is scaled down by sqrt(2 L), as GPT-2 starts: without it errors of
    rounding grow from layer to layer, and bfloat16 would not show what it shows of trained models.
    """
    if len(shape) == 1:
        return torch.ones(shape, dtype=sizes["dtype"])
    variance = 1.0 if name == EMBEDDING else 1 / shape[1]
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        variance /= 2 * sizes["num_layers"]
    return torch.randn(shape, generator=generator).mul_(math.sqrt(variance)).to(sizes["dtype"])


def _write_tokenizer(directory: Path, sizes: Sizes) -> None:
    """Byte-level BPE learned from Python's own manual; ids beyond it are spare words, so that each has a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(sizes["vocab_size"], BYTES + len(SPECIAL_TOKENS) + MAX_MERGES),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    tokenizer.add_tokens([f" spare{token_id}" for token_id in range(tokenizer.get_vocab_size(), sizes["vocab_size"])])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": sizes["max_position_embeddings"],
    }
    _write_json(directory / "tokenizer_config.json", config)
