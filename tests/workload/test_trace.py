"""Reshaping a list of trace requests."""

from __future__ import annotations

import math

import pytest

from asap_ray.errors import ConfigError
from asap_ray.workload.trace import (
    TraceRequest,
    cap_lengths,
    dequantise,
    drop_longer,
    scale_lengths,
    scale_rate,
    window,
)


def at(*times_s: float) -> list[TraceRequest]:
    """Requests that differ in time only."""
    return [TraceRequest(timestamp_s=time_s, input_length=100, output_length=10) for time_s in times_s]


def of_length(*lengths: int) -> list[TraceRequest]:
    """Requests that differ in length only."""
    return [TraceRequest(timestamp_s=0.0, input_length=length, output_length=10) for length in lengths]


def times_s(requests: list[TraceRequest]) -> list[float]:
    """Their times."""
    return [request.timestamp_s for request in requests]


def lengths(requests: list[TraceRequest]) -> list[int]:
    """Their prompt lengths."""
    return [request.input_length for request in requests]


def test_window_is_half_open_and_starts_at_zero() -> None:
    """[10, 20) keeps 10 and drops 20."""
    assert times_s(window(at(9.9, 10.0, 15.0, 20.0), start_s=10.0, duration_s=10.0)) == [0.0, 5.0]


def test_twice_the_rate_is_half_the_time() -> None:
    """The same requests, closer together."""
    assert times_s(scale_rate(at(0.0, 3.0), 2.0)) == [0.0, 1.5]


def test_scaled_prompt_has_at_least_one_token() -> None:
    """Rounding down to nothing would make an illegal request."""
    assert lengths(scale_lengths(of_length(1, 1000), 0.1)) == [1, 100]


def test_capping_keeps_every_request() -> None:
    """The longest becomes shorter."""
    assert lengths(cap_lengths(of_length(5, 50), 10)) == [5, 10]


def test_dropping_leaves_the_longest_out() -> None:
    """A prompt of exactly the limit stays."""
    assert lengths(drop_longer(of_length(5, 10, 11), 10)) == [5, 10]


def test_dequantised_times_are_sorted_and_within_their_bucket() -> None:
    """A clump of 100 at 3 s spreads over [3, 6)."""
    spread = times_s(dequantise(at(*[3.0] * 100), bucket_s=3.0, seed=0))

    assert spread == sorted(spread)
    assert min(spread) >= 3.0
    assert max(spread) < 6.0
    assert len(set(spread)) == 100


def test_dequantising_is_seeded() -> None:
    """The same seed gives the same times."""
    assert dequantise(at(0.0, 0.0), 3.0, seed=7) == dequantise(at(0.0, 0.0), 3.0, seed=7)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_senseless_factor_is_refused(factor: float) -> None:
    """A rate of zero, or of not a number, is a mistake of the caller."""
    with pytest.raises(ConfigError, match=r"rate factor=.* must be positive and finite"):
        scale_rate(at(0.0), factor)
