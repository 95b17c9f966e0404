"""The configuration of a served instance, and the one strict function that makes it from a mapping."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from asap_ray import __version__
from asap_ray.errors import ConfigError
from asap_ray.spec import ParallelSpec, PrefillSpec, RowType

DEVICES: Final = ("cpu",)
"""Backends that can serve today; ascend and cuda follow (docs/limits.md)."""

_T = TypeVar("_T")


def default_prefill() -> PrefillSpec:
    """Limits that suit a small model on a CPU; `docs/serving.md` says how to choose others."""
    return PrefillSpec(max_tokens=8192, solo_tokens=2048, inflection_tokens=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One served instance: a checkpoint on devices, and the bounds of its queue."""

    model: str  # directory of a Hugging Face checkpoint
    parallel: ParallelSpec
    prefill: PrefillSpec = field(default_factory=default_prefill)
    name: str = "asap"  # prefix of its actors' names; two instances need two
    served_model_name: str = ""  # empty: the directory's name
    device: str = "cpu"
    compute_type: RowType = RowType.FLOAT32
    threads: int = 1  # CPU threads of one device
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1 << 20
    start_timeout_s: float = 180.0

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"device={self.device!r} is not served yet; known devices: {', '.join(DEVICES)}")
        if min(self.threads, self.max_queued_requests, self.max_queued_tokens) < 1 or self.start_timeout_s <= 0:
            raise ConfigError(f"threads, queue bounds and start_timeout_s must be positive: {self}")
        if self.max_queued_tokens < self.prefill.max_tokens:
            raise ConfigError(
                f"max_queued_tokens={self.max_queued_tokens} must admit one longest prompt, "
                f"max_tokens={self.prefill.max_tokens}"
            )
        if self.prefill.row_type is not self.compute_type and self.compute_type is not RowType.FLOAT32:
            raise ConfigError(
                f"row_type={self.prefill.row_type} with compute_type={self.compute_type}: rows travel in the "
                "compute type, or narrower than float32"
            )


def config_from(mapping: Mapping[str, Any]) -> ServeConfig:
    """Build a `ServeConfig` from parsed YAML or msgpack; every unknown key or wrong type is a ConfigError."""
    return _build(ServeConfig, mapping, "the configuration")


def config_to(config: ServeConfig) -> dict[str, Any]:
    """The inverse of `config_from`, of plain dicts, strings and numbers."""
    return dataclasses.asdict(config)


def _build(cls: type[_T], mapping: Any, where: str) -> _T:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {mapping!r}")
    hints = typing.get_type_hints(cls)
    for key in mapping:
        if key not in hints:
            raise ConfigError(f"unknown key {key!r} in {where}; known keys: {', '.join(hints)}")
    required = (f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING)  # type: ignore[arg-type]
    if missing := [name for name in required if name not in mapping]:
        raise ConfigError(f"missing key {missing[0]!r} in {where}")
    return cls(**{key: _convert(hints[key], value, key) for key, value in mapping.items()})


def _convert(kind: Any, value: Any, key: str) -> Any:
    if isinstance(kind, types.UnionType):
        return None if value is None else _convert(typing.get_args(kind)[0], value, key)
    if dataclasses.is_dataclass(kind):
        return _build(typing.cast(type, kind), value, key)
    if issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ConfigError(f"{key}={value!r}; one of: {', '.join(kind)}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{key}={value!r} must be of type {kind.__name__}")
    return value


def fingerprint_of(config: ServeConfig, model_fingerprint: str) -> dict[str, str]:
    """What devices must agree on before they join: every field of the configuration, and the checkpoint itself."""
    fields = {"version": __version__, "model": model_fingerprint}
    for key, value in config_to(config).items():
        if isinstance(value, dict):
            fields |= {f"{key}.{inner}": str(inner_value) for inner, inner_value in value.items()}
        elif key != "model":
            fields[key] = str(value)
    return fields
