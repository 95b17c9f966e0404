"""Expert imbalance: chances, loads, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from asap_ray.cost.shapes import Shape, deepseek_v32
from asap_ray.cost.skew import UNIFORM, skew_of, zipf
from asap_ray.errors import ConfigError


@pytest.fixture
def small() -> Shape:
    """Two layers of eight experts, two a token."""
    return replace(deepseek_v32(), num_layers=2, num_experts=8, top_k=2)


def test_uniform_is_balanced() -> None:
    """Every device of 16 has load 1."""
    assert [UNIFORM.load(16)(e, 3) for e in range(16)] == [1.0] * 16


def test_loads_of_a_layer_average_one() -> None:
    """Imbalance moves rows between devices and makes none."""
    load = zipf(deepseek_v32(), 0.8, seed=1).load(16)

    assert sum(load(e, 5) for e in range(16)) / 16 == pytest.approx(1.0)


def test_no_expert_is_chosen_more_than_once_by_a_token() -> None:
    """However popular it is: what is over goes to the others, and each token still has top_k."""
    chosen_LX = zipf(deepseek_v32(), 3.0, seed=0).chosen_LX

    assert chosen_LX is not None
    assert chosen_LX.max() <= 1.0
    assert chosen_LX.sum(axis=1) == pytest.approx([8.0] * 61)


def test_counts_give_each_device_its_share(small: Shape, tmp_path: Path) -> None:
    """Device 0 of 2 holds experts 0 to 3: with three quarters of the rows its load is 1.5."""
    path = tmp_path / "counts.json"
    path.write_text(json.dumps([[3, 3, 3, 3, 1, 1, 1, 1], [1] * 8]))

    load = skew_of(f"counts:{path}", small).load(2)

    assert [load(0, 0), load(1, 0), load(0, 1)] == pytest.approx([1.5, 0.5, 1.0])


def test_devices_that_never_wait_even_out_over_layers(small: Shape, tmp_path: Path) -> None:
    """Busy in turn: 1.5 times its share in the worst layer, and no more than 1 over both."""
    path = tmp_path / "counts.json"
    path.write_text(json.dumps([[3] * 4 + [1] * 4, [1] * 4 + [3] * 4]))
    skew = skew_of(f"counts:{path}", small)

    assert (skew.slowest(2), skew.busiest(2)) == pytest.approx((1.5, 1.0))


def test_steeper_popularity_makes_the_busiest_device_busier() -> None:
    """And exponent 0 is balance."""
    slowest = [zipf(deepseek_v32(), exponent, seed=0).slowest(16) for exponent in (0.0, 0.3, 0.8)]

    assert slowest == sorted(slowest)
    assert slowest[0] == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["zipf", "zipf:x", "even", "counts:", "uniform:3"])
def test_an_unknown_skew_is_refused_with_its_text(text: str, small: Shape) -> None:
    """The message names what was given."""
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        skew_of(text, small)


def test_an_exponent_out_of_range_is_refused(small: Shape) -> None:
    """With the value and the limits."""
    with pytest.raises(ConfigError, match=r"-1\.0 must lie in 0\.\.4"):
        skew_of("zipf:-1", small)


@pytest.mark.parametrize(
    "counts", ["not json", "[[1, 2]]", "[[1, 1, 1, 1, 1, 1, 1, -1], [1, 1, 1, 1, 1, 1, 1, 1]]", "[[0], [0]]"]
)
def test_counts_of_another_model_are_refused(counts: str, small: Shape, tmp_path: Path) -> None:
    """Not JSON, another shape, or below zero: by the file's name."""
    path = tmp_path / "counts.json"
    path.write_text(counts)

    with pytest.raises(ConfigError, match=r"counts\.json"):
        skew_of(f"counts:{path}", small)
