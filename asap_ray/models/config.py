"""A Hugging Face config.json of Qwen3-MoE, read strictly: what is not understood is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asap_ray.errors import ConfigError
from asap_ray.spec import ModelSpec

MODEL_TYPE: Final = "qwen3_moe"
ARCHITECTURE: Final = "Qwen3MoeForCausalLM"

HARMLESS: Final = frozenset(
    {
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_window_layers",
        "output_router_logits",
        "pad_token_id",
        "router_aux_loss_coef",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys that do not change a prompt's logits: token ids, training, storage. `sliding_window` is a size only."""

MUST_BE: Final[Mapping[str, Any]] = {"hidden_act": "silu", "use_sliding_window": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig:
    """The sizes and switches of one Qwen3-MoE checkpoint."""

    vocab_size: int
    hidden: int
    num_layers: int  # decoder layers, dense ones included
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    moe_intermediate: int
    dense_intermediate: int  # of the layers that are not MoE
    moe_layers: tuple[int, ...]  # decoder layers whose MLP is routed, ascending
    norm_topk_prob: bool
    attention_bias: bool
    tie_word_embeddings: bool
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int  # tokens of prompt and answer together
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # any of them ends an answer

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} is odd; rotary embeddings turn pairs")
        if self.top_k > self.num_experts:
            raise ConfigError(f"num_experts_per_tok={self.top_k} exceeds the number of experts, {self.num_experts}")
        if not self.moe_layers:
            raise ConfigError(
                "no layer is MoE: see decoder_sparse_step and mlp_only_layers; a dense model needs no asap"
            )
        ids = (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,)))
        if wrong := [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]:
            raise ConfigError(f"bos or eos token id {wrong[0]} lies outside 0..vocab_size-1={self.vocab_size - 1}")

    @property
    def spec(self) -> ModelSpec:
        """What the engine needs to know."""
        return ModelSpec(
            num_layers=len(self.moe_layers), hidden=self.hidden, num_experts=self.num_experts, top_k=self.top_k
        )


def read_config(directory: Path) -> QwenConfig:
    """Read config.json, and the token ids of generation_config.json where there is one.

    Raises:
        ConfigError: a key is missing, ill-typed, or would change the mathematics and is not supported.
    """
    fields = _Fields(_read_json(directory / "config.json"), str(directory / "config.json"))
    fields.check_architecture()
    num_layers, hidden = fields.size("num_hidden_layers"), fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    moe_layers = fields.moe_layers(num_layers)
    config = QwenConfig(
        vocab_size=fields.size("vocab_size"),
        hidden=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads"),
        head_dim=fields.size("head_dim", hidden // num_heads),
        num_experts=fields.size(fields.one_of("num_experts", "num_local_experts")),
        top_k=fields.size("num_experts_per_tok"),
        moe_intermediate=fields.size("moe_intermediate_size"),
        dense_intermediate=fields.size("intermediate_size", 0 if len(moe_layers) == num_layers else None),
        moe_layers=moe_layers,
        norm_topk_prob=fields.flag("norm_topk_prob"),
        attention_bias=fields.flag("attention_bias"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=fields.rope_theta(),
        max_position_embeddings=fields.size("max_position_embeddings"),
        **_special_tokens(directory, fields),
    )
    fields.refuse_the_rest()
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; a Hugging Face checkpoint directory has one") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _special_tokens(directory: Path, fields: _Fields) -> dict[str, Any]:
    """generation_config.json has the last word, as in `transformers.generate`."""
    path = directory / "generation_config.json"
    generation = _Fields(_read_json(path), str(path)) if path.exists() else fields
    bos = generation.token_ids("bos_token_id") or fields.token_ids("bos_token_id")
    eos = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    return {"bos_token_id": bos[0] if bos else None, "eos_token_ids": eos}


class _Fields:
    """The keys of one JSON object, each checked as it is taken."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._taken: set[str] = set()

    def _take(self, key: str, default: Any = None) -> Any:
        self._taken.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def _wrong(self, key: str, must: str) -> ConfigError:
        return ConfigError(f"{self._where}: {key}={self._values.get(key)!r} must be {must}")

    def check_architecture(self) -> None:
        """Refuse any other model before reading further."""
        architectures = self._take("architectures", [ARCHITECTURE])
        if self._take("model_type") != MODEL_TYPE:
            raise self._wrong("model_type", f"{MODEL_TYPE!r}, the supported architecture")
        if architectures != [ARCHITECTURE]:
            raise self._wrong("architectures", f"[{ARCHITECTURE!r}]")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 up; required where there is no default."""
        value = self._take(key, default)
        if value is None:
            raise ConfigError(f"{self._where}: required key {key!r} is missing")
        if type(value) is not int or (value < 1 and value != default):
            raise self._wrong(key, "a whole number, at least 1")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where missing."""
        value = self._take(key, False)
        if type(value) is not bool:
            raise self._wrong(key, "true or false")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self._take(key, default)
        if type(value) not in (int, float) or value <= 0:
            raise self._wrong(key, "a positive number")
        return float(value)

    def one_of(self, old: str, new: str) -> str:
        """Which of two names of one value is present; both may be, when they agree."""
        before, after = self._take(old), self._take(new)
        if before is not None and after is not None and before != after:
            raise ConfigError(f"{self._where}: {old}={before!r} contradicts {new}={after!r}")
        return new if before is None else old

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id, a list of them, or none."""
        value = self._take(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(type(token_id) is not int for token_id in ids):
            raise self._wrong(key, "a token id or a list of them")
        return tuple(ids)

    def moe_layers(self, num_layers: int) -> tuple[int, ...]:
        """Every `decoder_sparse_step`-th layer, but those of `mlp_only_layers`."""
        step, dense = self.size("decoder_sparse_step", 1), self._take("mlp_only_layers", [])
        if not isinstance(dense, list) or any(type(idx) is not int for idx in dense):
            raise self._wrong("mlp_only_layers", "a list of layer indices")
        return tuple(idx for idx in range(num_layers) if idx not in dense and (idx + 1) % step == 0)

    def rope_theta(self) -> float:
        """The base of plain rotary embeddings, from either generation of keys."""
        new = self._take("rope_parameters", {})
        for key, value in (("rope_scaling", self._take("rope_scaling", {})), ("rope_parameters", new)):
            plain = isinstance(value, dict) and value.get("rope_type", value.get("type", "default")) == "default"
            if not plain or set(value) - {"rope_type", "type", "rope_theta"}:
                raise self._wrong(
                    key, "of rope_type 'default' and nothing else; scaled rotary embeddings are not supported"
                )
        old, theta = self._take("rope_theta"), new.get("rope_theta")
        if old is not None and theta is not None and old != theta:
            raise ConfigError(f"{self._where}: rope_theta={old!r} contradicts rope_parameters={new!r}")
        theta = old if theta is None else theta
        if type(theta) not in (int, float) or theta <= 0:
            raise ConfigError(f"{self._where}: rope_theta={theta!r} must be a positive number")
        return float(theta)

    def refuse_the_rest(self) -> None:
        """A key nobody took is fine if it is known to be harmless or says nothing; else it is refused."""
        for key, value in self._values.items():
            if key in MUST_BE and value not in (None, MUST_BE[key]):
                raise self._wrong(key, f"{MUST_BE[key]!r}, the only value supported")
            known = key in self._taken or key in HARMLESS or key in MUST_BE or key.startswith("_")
            if not known and value not in (None, False, [], {}):
                raise ConfigError(f"{self._where}: {key}={value!r} is not supported and may change the model's answers")
