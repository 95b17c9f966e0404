"""Placements made of measured counts: whole, within room, and more even than experts in the order of their ids."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from asap_ray.errors import ConfigError
from asap_ray.evaluation.places import num_places_of, place, read_counts
from asap_ray.placement import contiguous
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, paper


@pytest.mark.parametrize("seed", range(60))
def test_every_expert_has_its_places_on_devices_of_their_own(seed: int) -> None:
    """Random counts, devices and places up to all experts on all devices: `Instance` accepts what is made."""
    rng = np.random.default_rng(seed)
    num_experts = int(rng.integers(1, 20))
    moe_devices = int(rng.integers(1, num_experts + 1))
    redundant = int(rng.integers(0, num_experts * (moe_devices - 1) + 1))
    counts_X = (rng.pareto(1.0, num_experts) * rng.integers(0, 2, num_experts)).tolist()

    placed = place(counts_X, moe_devices, redundant)

    Instance(
        model=ModelSpec(num_layers=1, hidden=1, num_experts=num_experts, top_k=1),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=moe_devices),
        prefill=paper().prefill,
        placement=placed,
    )
    num_places = Counter(placed.expert_of_place)
    assert [num_places[x] for x in range(num_experts)] == num_places_of(counts_X, moe_devices, redundant)


def test_the_hottest_expert_gets_the_next_place() -> None:
    """100 rows are 50 a place, then 33: less than the 40 of another."""
    assert num_places_of([100, 40, 10, 1], moe_devices=3, redundant=2) == [3, 1, 1, 1]
    assert num_places_of([100, 60, 10, 1], moe_devices=3, redundant=2) == [2, 2, 1, 1]
    assert num_places_of([100, 40, 10, 1], moe_devices=2, redundant=2) == [2, 2, 1, 1]


def test_devices_are_filled_alike() -> None:
    """Counts that fall as 1/rank on four devices: 2.7 times the mean by id, 1.01 with four more places."""
    counts_X = [1000 / (x + 1) for x in range(32)]

    assert round(max(contiguous(32, 4).loads(counts_X)), 1) == 2.7
    assert max(place(counts_X, 4, 4).loads(counts_X)) < 1.01


@pytest.mark.parametrize(
    ("devices", "redundant", "message"),
    [
        (0, 0, r"moe_devices=0 must lie in 1\.\.3"),
        (4, 0, r"moe_devices=4 must lie in 1\.\.3"),
        (2, -1, r"redundant=-1 must lie in 0\.\.3"),
        (2, 4, r"redundant=4 must lie in 0\.\.3"),
    ],
)
def test_what_has_no_room_is_refused(devices: int, redundant: int, message: str) -> None:
    """Three experts."""
    with pytest.raises(ConfigError, match=message):
        place([1, 2, 3], devices, redundant)


def test_counts_by_layer_are_added(tmp_path: Path) -> None:
    """One placement serves all layers."""
    (tmp_path / "counts.json").write_text(json.dumps([[1, 2, 3], [10, 20, 30]]))

    assert read_counts(tmp_path / "counts.json", 3) == [11, 22, 33]


def test_counts_of_a_metrics_page_are_added_over_devices(tmp_path: Path) -> None:
    """An expert with two places is counted on two devices; one that was never asked has none."""
    (tmp_path / "page").write_text(
        "# HELP ray_asap_expert_rows_total Rows\n"
        'ray_asap_expert_rows_total{app="asap",expert="0",moe_device="0"} 5.0\n'
        'ray_asap_expert_rows_total{app="asap",expert="2",moe_device="0"} 7.0\n'
        'ray_asap_expert_rows_total{app="asap",expert="2",moe_device="1"} 1e1\n'
        'ray_asap_expert_calls_total{app="asap",moe_device="1"} 3.0\n'
    )

    assert read_counts(tmp_path / "page", 4) == [5, 0, 17, 0]


def test_an_expert_beyond_the_models_is_refused_before_there_is_room_for_it(tmp_path: Path) -> None:
    """A page of another model, or of nobody's."""
    (tmp_path / "page").write_text('ray_asap_expert_rows_total{expert="9999999999999"} 5.0\n')

    with pytest.raises(ConfigError, match=r"expert counts .*page.* name expert 9999999999999; the model has 3"):
        read_counts(tmp_path / "page", 3)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[[]]", "[1, -1]", "[NaN]", '["a"]', "[[1], [1, 2]]", "3", "[1, 2, 3, 4]", "[1e999]"]
)
def test_what_are_no_counts_is_refused(tmp_path: Path, text: str) -> None:
    """With the name of the file."""
    (tmp_path / "counts.json").write_text(text)

    with pytest.raises(ConfigError, match=r"expert counts .*counts\.json"):
        read_counts(tmp_path / "counts.json", 3)
