"""Plain values (parsed YAML, JSON or msgpack) into dataclasses, strictly: the only such function."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from asap_ray.errors import ConfigError

_T = TypeVar("_T")


def build(cls: type[_T], values: Any, where: str) -> _T:
    """An instance of the dataclass `cls` from a mapping of its fields, nested ones included.

    Raises:
        ConfigError: a key is unknown or missing, or a value is of another type; names the key in `where`.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {values!r}")
    hints = _hints(typing.cast(Any, cls))
    for key in values:
        if key not in hints:
            raise ConfigError(f"unknown key {key!r} in {where}; known keys: {', '.join(hints)}")
    for field in dataclasses.fields(typing.cast(Any, cls)):
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"missing key {field.name!r} in {where}")
    return cls(**{key: _convert(hints[key], value, key) for key, value in values.items()})


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(kind: Any, value: Any, key: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # X | None is the only union we use
        return None if value is None else _convert(arguments[0], value, key)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) != len(value):
            raise ConfigError(f"{key}={value!r} must have {len(kinds)} elements")
        return tuple(_convert(one, element, key) for one, element in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, Mapping):
        return {_convert(arguments[0], k, key): _convert(arguments[1], v, key) for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(Any, kind), value, key)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ConfigError(f"{key}={value!r}; one of: {', '.join(map(str, kind))}") from None
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:
            raise ConfigError(f"{key}={value} must be finite")
        return float(value)
    if origin or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{key}={value!r} must be of type {getattr(kind, '__name__', kind)}")
    return value
