"""What every family of models has in common, and the seams where families differ."""

# Shapes: S tokens of the batch, R rows of this rank, H hidden, A what attention needs of a token, E experts, K chosen.

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import CacheKind
from asap_ray.models.fields import Fields
from asap_ray.models.passes import Sequence
from asap_ray.models.rope import Angles, Rope
from asap_ray.models.weights import Shape, Shard
from asap_ray.spec import ModelSpec


class AttentionLayer(Protocol):
    """Attention of one layer, the heads of one rank."""

    @property
    def kept(self) -> Many[CacheKind]:
        """What a token leaves in the cache of this rank."""

    def workspace(self, num_tokens: int, num_threads: int) -> int:
        """Numbers it makes on the way of so many tokens, those that exist at once, in so many threads: an estimate."""

    def compress(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """What all ranks need of this rank's normalised rows, [R, A]; the rows themselves if nothing less will do."""

    def __call__(self, rows_SA: torch.Tensor, /, angles: Angles, sequences: list[Sequence]) -> torch.Tensor:
        """Attend within each sequence; this rank's part of the output sum, [S, H]. Other rows only cost time."""


class Attention(Protocol):
    """A family's attention, as its configuration says."""

    @property
    def rope(self) -> Rope:
        """The rotation of its positions."""

    def layer(self, shard: Shard, config: ModelConfig, layer_idx: int) -> AttentionLayer:
        """Read one layer's share."""

    def tensors(self, name: str, hidden: int) -> Iterator[tuple[str, Shape]]:
        """What a checkpoint has of one layer: names, which begin with `name`, and shapes."""


class Routing(Protocol):
    """A family's rule from router logits to experts."""

    @property
    def top_k(self) -> int:
        """Experts of a token."""

    @property
    def bias(self) -> str | None:
        """Name, within the MoE block, of the vector that corrects the choice; None where there is none."""

    def choose(self, logits_SE: torch.Tensor, bias_E: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Distinct experts [S, K] of each token, and their weights, float32."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What a family calls the tensors of a MoE layer."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes and switches of one checkpoint."""

    vocab_size: int
    hidden: int
    num_layers: int  # decoder layers, dense ones included
    num_guessing: int = 0  # layers behind them that guess further tokens; they are not read
    attention: Attention
    num_experts: int
    routing: Routing
    moe_intermediate: int
    moe_layers: tuple[int, ...]  # decoder layers whose MLP is routed, ascending
    dense_intermediate: int  # of the layers that are not MoE
    shared_intermediate: int = 0  # of all shared experts of a MoE layer together; 0: none
    names: TensorNames = TensorNames()
    fp8_block: tuple[int, int] | None = None  # rows and columns that share a scale, where matrices are stored in FP8
    tie_word_embeddings: bool
    rms_norm_eps: float
    max_position_embeddings: int  # tokens of prompt and answer together
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # any of them ends an answer

    def __post_init__(self) -> None:
        if self.routing.top_k > self.num_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.routing.top_k} exceeds the number of experts, {self.num_experts}"
            )
        if not self.moe_layers:
            raise ConfigError(
                "no layer is MoE: see decoder_sparse_step, mlp_only_layers or first_k_dense_replace; "
                "a dense model needs no asap"
            )
        ids = (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,)))
        if wrong := [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]:
            raise ConfigError(f"bos or eos token id {wrong[0]} lies outside 0..vocab_size-1={self.vocab_size - 1}")

    @property
    def spec(self) -> ModelSpec:
        """What the engine needs to know."""
        return ModelSpec(
            num_layers=len(self.moe_layers), hidden=self.hidden, num_experts=self.num_experts, top_k=self.routing.top_k
        )


GENERATION: Final = "generation_config.json"


def read_sizes(fields: Fields, directory: Path) -> dict[str, Any]:
    """The fields of `ModelConfig` that every family calls by the same keys."""
    fields.only("hidden_act", "silu")
    return {
        "vocab_size": fields.size("vocab_size"),
        "hidden": fields.size("hidden_size"),
        "num_layers": fields.num_layers(),
        "num_guessing": max(fields.count(key, 0) for key in ("num_nextn_predict_layers", "num_mtp_layers")),
        "fp8_block": fields.fp8_block(),
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "max_position_embeddings": fields.size("max_position_embeddings"),
        **_special_tokens(directory, fields),
    }


def _special_tokens(directory: Path, fields: Fields) -> dict[str, Any]:
    """generation_config.json has the last word, as in `transformers.generate`."""
    path = directory / GENERATION
    generation = Fields.read(path) if path.exists() else fields
    bos = generation.token_ids("bos_token_id") or fields.token_ids("bos_token_id")
    eos = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    return {"bos_token_id": bos[0] if bos else None, "eos_token_ids": eos}
