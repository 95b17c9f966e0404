"""Drawn workloads: Poisson arrivals and the paper-like lengths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from asap_ray.errors import ConfigError
from asap_ray.workload.arrivals import poisson_arrivals
from asap_ray.workload.lengths import lengths_of, paper_lengths, paper_trace


def test_first_lengths_of_seed_0() -> None:
    """A seed means the same prompts on every machine."""
    assert paper_lengths(10_000, seed=0)[:5] == [2137, 1437, 4718, 2069, 772]


def test_mean_length_is_the_distributions() -> None:
    """3814 tokens after prompts above 32k are left out; 10 000 draws come to 3838."""
    assert round(sum(paper_lengths(10_000, seed=0)) / 10_000) == 3838


def test_lengths_stay_within_the_papers_ends() -> None:
    """31 tokens (2.3) to 32k (5.1)."""
    drawn = paper_lengths(10_000, seed=0)

    assert (min(drawn), max(drawn)) == (31, 32693)


def test_a_fifth_of_the_prompts_is_under_512_tokens() -> None:
    """The first bar of Figure 15 is not empty: 21.3 % by the formula."""
    drawn = paper_lengths(10_000, seed=0)

    assert round(sum(length < 512 for length in drawn) / 10_000, 2) == 0.21


@pytest.mark.parametrize(("preset", "mean"), [("A", 3814), ("B", 4330), ("C", 3304), ("M", 4055)])
def test_presets_have_the_means_of_their_formulas(preset: str, mean: int) -> None:
    """After prompts above 32k are left out, within 1 % of 200 000 draws."""
    drawn = lengths_of(preset).draw(200_000, seed=0)

    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.01)


def test_unknown_preset_is_refused() -> None:
    """With those that exist."""
    with pytest.raises(ConfigError, match="unknown length preset 'Z'; presets are A, B, C, M"):
        lengths_of("Z")


def test_number_of_arrivals_of_seed_0() -> None:
    """1200 are expected in 300 s at 4 a second; this seed has 1250."""
    assert len(poisson_arrivals(rate=4.0, duration_s=300.0, seed=0)) == 1250


def test_arrivals_are_sorted_within_the_run() -> None:
    """None before the start or after the end."""
    arrivals_s = poisson_arrivals(rate=4.0, duration_s=300.0, seed=0)

    assert arrivals_s == sorted(arrivals_s)
    assert 0 <= arrivals_s[0] < arrivals_s[-1] < 300


def test_gaps_vary_as_a_poisson_process_does() -> None:
    """The gaps of a Poisson process are exponential: their spread is their mean."""
    arrivals_s = poisson_arrivals(rate=10.0, duration_s=2000.0, seed=0)
    gaps_s = [later - earlier for earlier, later in pairwise(arrivals_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)

    assert variance**0.5 / mean_s == pytest.approx(1.0, abs=0.02)


def test_negative_rate_is_refused() -> None:
    """By name and value."""
    with pytest.raises(ConfigError, match=r"rate=-1\.0 must be positive"):
        poisson_arrivals(rate=-1.0, duration_s=1.0, seed=0)


def test_paper_trace_joins_both() -> None:
    """Its times are the arrivals, its prompts the lengths, of one seed."""
    trace = paper_trace(rate=4.0, duration_s=300.0, seed=0)

    assert [each.timestamp_s for each in trace] == poisson_arrivals(4.0, 300.0, seed=0)
    assert [each.input_length for each in trace] == paper_lengths(1250, seed=0)
