"""Placements of experts: what is one, where it is written, and what a wrong one says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asap_ray.cli.serve import read_config
from asap_ray.config import ServeConfig, config_from, config_to, fingerprint_of
from asap_ray.errors import ConfigError
from asap_ray.layout import layout_of
from asap_ray.placement import Placement, contiguous, read_placement
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, paper
from tests.nonsense import damaged, spoilt

SOUND = {"experts": [[3, 0], [1, 0], [2, 0, 4]]}
SEVERAL = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def instance_with(placement: Placement | None, num_experts: int = 5, moe_devices: int = 3) -> Instance:
    """A small instance."""
    return Instance(
        model=ModelSpec(num_layers=1, hidden=4, num_experts=num_experts, top_k=2),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=moe_devices),
        prefill=paper().prefill,
        placement=placement,
    )


def config_with(**settings: Any) -> dict[str, Any]:
    """A configuration of three MoE devices."""
    return {"model": "m", "parallel": {"dp_groups": 1, "tp": 1, "moe_devices": 3}, **settings}


def test_without_one_experts_are_in_the_order_of_their_ids() -> None:
    """And the layout is the one of a contiguous placement."""
    plain, same = instance_with(None), instance_with(contiguous(5, 3))

    assert [plain.experts_of(e) for e in range(3)] == [(0,), (1, 2), (3, 4)]
    assert layout_of(plain) == layout_of(same)


def test_buffers_are_laid_out_for_places() -> None:
    """Seven places of five experts on three devices: headers have room for three, and a row for two pairs."""
    layout = layout_of(instance_with(Placement(experts=((3, 0), (1, 0), (2, 0, 4)))))

    assert (layout.num_experts, layout.num_places, layout.max_local_experts) == (5, 7, 3)
    assert layout.slot_pairs == 2 * layout.slot_rows


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ([], "no MoE device"),
        ([[0, 1, 0], [2, 3, 4]], "MoE device 0 has expert 0 twice"),
        ([[0], [1, 2, 3, 4]], r"\[1, 4\] places on the devices; 5 are divided as \[2, 3\]"),
        ([[0, 1], [2, 3, 5]], r"expert 5 is not in 0\.\.4"),
        ([[0, 1], [2, -1, 4]], r"expert -1 is not in 0\.\.4"),
        ([[0, 1], [2, 0, 4]], "expert 3 has no place, of 1 that have none"),
        ([[0, 1], [2, 0], [3, 4]], "placement is of 3 MoE devices; the instance has 2"),
    ],
)
def test_a_wrong_placement_is_named(experts: list[list[int]], message: str) -> None:
    """Which expert or device, and what would be right."""
    with pytest.raises(ConfigError, match=message):
        instance_with(Placement(experts=tuple(map(tuple, experts))), moe_devices=2)


def test_a_configuration_names_the_file(tmp_path: Path) -> None:
    """`placement` is a path from the folder of the configuration; devices get what stands there."""
    (tmp_path / "hot.json").write_text(json.dumps(SOUND))
    (tmp_path / "serve.yaml").write_text(json.dumps(config_with(placement="hot.json")))

    served = read_config(tmp_path / "serve.yaml")

    assert served.placement == Placement(experts=((3, 0), (1, 0), (2, 0, 4)))
    assert config_from(config_to(served)) == served


def test_a_configuration_of_other_devices_is_refused() -> None:
    """Before any of them starts."""
    with pytest.raises(ConfigError, match="placement is of 2 MoE devices; the instance has 3"):
        config_from(config_with(placement={"experts": [[0], [1]]}))


def test_devices_must_agree_on_the_placement() -> None:
    """It is in the fingerprint they join with."""
    one, other = (
        ServeConfig(
            model="m",
            parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=2),
            placement=Placement(experts=experts),
        )
        for experts in (((0, 1), (1, 2)), ((0, 1), (0, 2)))
    )

    wanted, found = fingerprint_of(one, "w"), fingerprint_of(other, "w")

    assert [key for key in wanted if wanted[key] != found[key]] == ["placement.experts"]


@SEVERAL
@given(damaged(json.dumps(SOUND).encode()))
def test_a_damaged_file_is_a_placement_or_refused(tmp_path: Path, content: bytes) -> None:
    """Never another error."""
    file = tmp_path / "placement.json"
    file.write_bytes(content)

    with contextlib.suppress(ConfigError):
        instance_with(read_placement(file))


@SEVERAL
@given(spoilt(dataclasses.asdict(Placement(experts=((3, 0), (1, 0), (2, 0, 4))))) | st.none())
def test_nonsense_in_the_file_is_refused(tmp_path: Path, content: Any) -> None:
    """Values of any type and size."""
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(content))

    with contextlib.suppress(ConfigError):
        instance_with(read_placement(file))
