"""Recorded requests: their times and lengths, and pure functions that reshape a list of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from asap_ray.errors import ConfigError

MOONCAKE_BLOCK_TOKENS: Final = 512
"""Tokens behind one entry of `hash_ids` in Mooncake's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One row of a trace. `hash_ids` name the blocks of its prompt: same ids, same prefix; may be empty.

    Block k holds tokens round(k * block_tokens) .. round((k + 1) * block_tokens) - 1. Scaling lengths
    scales `block_tokens`, so two prompts share the same part of themselves as before.
    """

    timestamp_s: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: float = MOONCAKE_BLOCK_TOKENS


def window(requests: Sequence[TraceRequest], start_s: float, duration_s: float) -> list[TraceRequest]:
    """The requests of [start_s, start_s + duration_s), with times counted from its start."""
    return [
        dataclasses.replace(request, timestamp_s=request.timestamp_s - start_s)
        for request in requests
        if start_s <= request.timestamp_s < start_s + duration_s
    ]


def scale_rate(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """`factor` times as many requests a second: the same requests, closer together."""
    check_positive("rate factor", factor)
    return [dataclasses.replace(request, timestamp_s=request.timestamp_s / factor) for request in requests]


def scale_lengths(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """Prompts and outputs `factor` times as long, of at least one token; shared prefixes scale with them."""
    check_positive("length factor", factor)
    return [
        dataclasses.replace(
            request,
            input_length=max(1, round(request.input_length * factor)),
            output_length=max(1, round(request.output_length * factor)),
            block_tokens=request.block_tokens * factor,
        )
        for request in requests
    ]


def cap_lengths(requests: Sequence[TraceRequest], max_tokens: int) -> list[TraceRequest]:
    """Cut longer prompts to `max_tokens`: every request stays, the heaviest become lighter."""
    check_positive("max_tokens", max_tokens)
    return [dataclasses.replace(request, input_length=min(request.input_length, max_tokens)) for request in requests]


def drop_longer(requests: Sequence[TraceRequest], max_tokens: int) -> list[TraceRequest]:
    """Leave out prompts above `max_tokens`, as the paper's evaluation does above 32k (5.1)."""
    return [request for request in requests if request.input_length <= max_tokens]


def dequantise(requests: Sequence[TraceRequest], bucket_s: float, seed: int) -> list[TraceRequest]:
    """Spread clumped times: each moves later by a uniform draw from [0, bucket_s), then all are sorted.

    Mooncake's conversation trace counts in steps of 3 s; as it stands, about ten requests come at once.
    """
    check_positive("bucket_s", bucket_s)
    delays_s = np.random.default_rng(seed).uniform(0.0, bucket_s, len(requests))
    spread = [
        dataclasses.replace(request, timestamp_s=request.timestamp_s + float(delay_s))
        for request, delay_s in zip(requests, delays_s, strict=True)
    ]
    return sorted(spread, key=lambda request: request.timestamp_s)


def check_positive(what: str, value: float) -> None:
    """Refuse a factor, rate or duration that makes no sense, with a ConfigError."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{what}={value} must be positive and finite")
