"""Table 1 of the paper as frozen dataclasses: what a prefill instance is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from asap_ray.errors import ConfigError
from asap_ray.placement import Placement, contiguous

NUM_SLOTS: Final = 2
"""Batches in flight per DP group (3.3.2). One result region deadlocks; two do not (ADR 0001)."""

MAX_TP: Final = 64
"""One 64-bit bitmap word has one bit per TP rank (3.2.1)."""


MIN_TP_DEADLINE_S: Final = 2.0
"""An idle group's ranks hear from each other once a second."""


class RowType(StrEnum):
    """Element type of the rows that travel between devices."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def num_bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is RowType.FLOAT32 else 2


class Combine(StrEnum):
    """How expert results come back (3.2.2): one weighted sum a device, or one row an expert (Table 2)."""

    REDUCED = "reduced"
    PER_EXPERT = "per_expert"


class ExpertType(StrEnum):
    """What the weights of routed experts are kept in."""

    FLOAT = "float"  # the compute type
    INT8 = "int8"  # W8A8: products in int8, rows travel as they do otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the engine needs to know of a model; everything else stays in `models/`."""

    num_layers: int  # L, counting MoE layers only
    hidden: int  # H
    num_experts: int  # E_total
    top_k: int  # K

    def __post_init__(self) -> None:
        if min(self.num_layers, self.hidden, self.num_experts, self.top_k) < 1:
            raise ConfigError(f"every size of a model must be at least 1: {self}")
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"top_k={self.top_k} exceeds num_experts={self.num_experts}; a token cannot choose one expert twice"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """The devices of one prefill instance: dp_groups * tp + moe_devices (3.1)."""

    dp_groups: int  # D
    tp: int  # T
    moe_devices: int  # E

    def __post_init__(self) -> None:
        if min(self.dp_groups, self.tp, self.moe_devices) < 1:
            raise ConfigError(f"every degree must be at least 1: {self}")
        if self.tp > MAX_TP:
            raise ConfigError(f"tp={self.tp} exceeds {MAX_TP}, the bits of one bitmap word")

    @property
    def num_devices(self) -> int:
        """NPUs of the instance."""
        return self.dp_groups * self.tp + self.moe_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpec:
    """Limits of a batch, and how its rows travel."""

    max_tokens: int  # S: the longest batch, and so the longest prompt
    solo_tokens: int  # 3.3.2: a batch above this runs alone in its DP group
    inflection_tokens: int  # 3.3.1: a batch is full from here on
    max_wait_s: float = 0.005  # how long a batch may wait to fill up
    row_type: RowType = RowType.FLOAT32
    combine: Combine = Combine.REDUCED
    deadline_s: float = 30.0  # no wait on a peer is longer

    def __post_init__(self) -> None:
        if not 1 <= self.inflection_tokens <= self.solo_tokens:
            raise ConfigError(
                f"inflection_tokens={self.inflection_tokens} must lie in 1..solo_tokens={self.solo_tokens}"
            )
        if not 2 * self.solo_tokens <= self.max_tokens:
            raise ConfigError(
                f"solo_tokens={self.solo_tokens} must be at most half of max_tokens={self.max_tokens}; "
                "two batches in flight share the room of one"
            )
        if self.max_wait_s < 0 or self.deadline_s <= 0:
            raise ConfigError(f"max_wait_s={self.max_wait_s} and deadline_s={self.deadline_s} must be positive")

    def is_solo(self, num_tokens: int) -> bool:
        """Whether a batch this long runs alone in its group (3.3.2)."""
        return num_tokens > self.solo_tokens

    def may_share(self, num_tokens: Iterable[int]) -> bool:
        """Whether batches of these lengths may be in flight in one group: a solo batch has it to itself."""
        lengths = list(num_tokens)
        return len(lengths) < 2 or not any(map(self.is_solo, lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Pages for the keys and values of a DP group, on each of its ranks."""

    block_size: int = 64  # tokens of a page
    memory_bytes: int | None = None  # a rank's; None: what is left of its device's memory

    def __post_init__(self) -> None:
        if self.block_size < 1 or (self.memory_bytes is not None and self.memory_bytes < 1):
            raise ConfigError(
                f"kv_cache: block_size={self.block_size} and memory_bytes={self.memory_bytes} must be at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One prefill instance: a model on devices with limits."""

    model: ModelSpec
    parallel: ParallelSpec
    prefill: PrefillSpec
    placement: Placement | None = None  # None: every expert in one place, in the order of their ids

    def __post_init__(self) -> None:
        if self.parallel.moe_devices > self.model.num_experts:
            raise ConfigError(
                f"moe_devices={self.parallel.moe_devices} exceeds num_experts={self.model.num_experts}; "
                "a device without experts has nothing to do"
            )
        if self.parallel.tp > 1 and self.prefill.deadline_s < MIN_TP_DEADLINE_S:
            raise ConfigError(f"deadline_s={self.prefill.deadline_s} with tp > 1 must be at least {MIN_TP_DEADLINE_S}")
        if self.placement:
            self.placement.check(self.model.num_experts, self.parallel.moe_devices)

    @property
    def placed(self) -> Placement:
        """Where its experts are."""
        return self.placement or contiguous(self.model.num_experts, self.parallel.moe_devices)

    def experts_of(self, moe_device: int) -> tuple[int, ...]:
        """Global ids of the experts on one MoE device, in the order of its places."""
        return self.placed.experts[moe_device]


def paper() -> Instance:
    """The representative configuration of Table 1: DeepSeek-V3.2, D=4, T=4, E=16."""
    return Instance(
        model=ModelSpec(num_layers=61, hidden=7168, num_experts=256, top_k=8),
        parallel=ParallelSpec(dp_groups=4, tp=4, moe_devices=16),
        prefill=PrefillSpec(
            max_tokens=32 * 1024,
            solo_tokens=16 * 1024,
            inflection_tokens=2 * 1024,
            row_type=RowType.BFLOAT16,
        ),
    )
