"""What a model keeps of each token, as numbers: keys and values of heads, a latent, indexer keys."""

from __future__ import annotations

from dataclasses import dataclass

from asap_ray.errors import ConfigError
from asap_ray.spec import RowType


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKind:
    """What each token leaves in each layer on one rank: a row for each head, of several parts side by side."""

    name: str
    heads: int
    parts: tuple[int, ...]  # elements
    head_ids: tuple[int, ...] = ()  # which of the model's heads they are; empty: the first ones, in order

    def __post_init__(self) -> None:
        if self.head_ids and len(self.head_ids) != self.heads:
            raise ConfigError(f"{self.name}: heads={self.heads} and head_ids={self.head_ids} differ in number")
        if not self.parts or min(self.heads, *self.parts) < 1:
            raise ConfigError(f"{self.name}: heads={self.heads} and parts={self.parts} must be at least 1 each")

    @property
    def ids(self) -> tuple[int, ...]:
        """Of its heads, among the model's."""
        return self.head_ids or tuple(range(self.heads))

    @property
    def width(self) -> int:
        """Elements of one head's row."""
        return sum(self.parts)


def grouped_query(num_kv_heads: int, head_dim: int, head_ids: tuple[int, ...] = ()) -> CacheKind:
    """Key and value of each key-value head of this rank."""
    return CacheKind(name="key_value", heads=num_kv_heads, parts=(head_dim, head_dim), head_ids=head_ids)


def latent(kv_lora_rank: int, rope_dim: int) -> CacheKind:
    """MLA: the compressed latent and the key that is rotated, one row for all heads; every rank has it whole."""
    return CacheKind(name="latent", heads=1, parts=(kv_lora_rank + rope_dim,))


def indexer(head_dim: int) -> CacheKind:
    """DSA: the lightning indexer's key, one row for all its heads; every rank has it whole."""
    return CacheKind(name="indexer", heads=1, parts=(head_dim,))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What one rank of an attention group keeps."""

    num_layers: int  # decoder layers, dense ones included
    block_size: int  # tokens
    kinds: tuple[CacheKind, ...]
    element: RowType

    def __post_init__(self) -> None:
        if min(self.num_layers, self.block_size, len(self.kinds)) < 1:
            raise ConfigError(
                f"num_layers={self.num_layers}, block_size={self.block_size}, kinds={len(self.kinds)}: at least 1 each"
            )
        names = [kind.name for kind in self.kinds]
        if len({*names}) < len(names):
            raise ConfigError(f"kinds of a cache must differ in name: {', '.join(names)}")

    @property
    def token_bytes(self) -> int:
        """Of one token, all layers and kinds."""
        elements = sum(kind.heads * kind.width for kind in self.kinds)
        return self.num_layers * elements * self.element.num_bytes

    @property
    def block_bytes(self) -> int:
        """Of one block, all layers and kinds."""
        return self.block_size * self.token_bytes

    def num_blocks(self, num_bytes: int) -> int:
        """How many blocks fit. A group has as many as its smallest rank.

        Raises:
            ConfigError: not even one does.
        """
        if num_bytes < self.block_bytes:
            raise ConfigError(
                f"{num_bytes} bytes for the KV cache hold no block; one of {self.block_size} tokens takes "
                f"{self.block_bytes}; give it more memory or make blocks smaller"
            )
        return num_bytes // self.block_bytes
