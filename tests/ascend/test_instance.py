"""`device: npu` as it is served: Ray actors with a die each, torch-npu in each, the fake runtime below."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from asap_ray.backends.host_ports import HostPorts
from asap_ray.config import EXPERT_KERNELS, ServeConfig, config_to
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.ascend.npu_venv import run_module
from tests.ascend.prompts import batch
from tests.ascend.test_engine import Running
from tests.ascend.twin import kernels_folder

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", params=EXPERT_KERNELS)
def config(tiny_model: Path, request: pytest.FixtureRequest) -> ServeConfig:
    """One group, two MoE devices: three dies."""
    return ServeConfig(
        model=str(tiny_model),
        name="npu",
        device="npu",
        kernels=str(kernels_folder()),
        expert_kernel=request.param,
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=2),
        prefill=PrefillSpec(max_tokens=32, solo_tokens=16, inflection_tokens=4, deadline_s=60.0),
    )


@pytest.fixture(scope="module")
def found(library: Path, config: ServeConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the instance said."""
    assert library
    folder = tmp_path_factory.mktemp("instance")
    path = folder / "config.json"
    path.write_text(json.dumps(config_to(config)))
    run_module("tests.ascend.instance_on_npu", str(path), timeout_s=390, ASAP_FOUND=str(folder / "found.json"))
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


def test_an_instance_answers_as_on_the_host(found: dict[str, Any], config: ServeConfig) -> None:
    """The same first tokens, and their probabilities."""
    on_host = dataclasses.replace(config, device="cpu", expert_kernel=EXPERT_KERNELS[0])
    running = Running(on_host, HostPorts)
    running.put(batch())
    expected = running.first_tokens()

    assert found["token_ids"] == [token.token_id for token in expected]
    assert found["logprobs"] == pytest.approx([token.logprob for token in expected], abs=1e-4)


def test_each_actor_has_a_die_of_its_own(found: dict[str, Any]) -> None:
    """Ray's NPU resource gives each one number in ASCEND_RT_VISIBLE_DEVICES."""
    assert sorted(actor["dies"] for actor in found["seen"].values()) == ["0", "1", "2"]


def test_attention_is_on_its_die(found: dict[str, Any]) -> None:
    """The first one an actor sees: norms, and the pages of the KV cache."""
    assert [actor["devices"] for actor in found["seen"].values() if "devices" in actor] == [["npu:0"]]


def test_a_ranks_rows_are_tensors_of_its_die(found: dict[str, Any], config: ServeConfig) -> None:
    """It has allocated there by torch-npu; a MoE device's rows stay in the items of its own, if not grouped."""
    allocated = {name: actor["bytes"] > 0 for name, actor in found["seen"].items()}
    is_grouped = config.expert_kernel == "grouped_matmul"

    assert allocated == {name: is_grouped or ":attention:" in name for name in allocated}
