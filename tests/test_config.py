"""The configuration: one strict function, and errors that name the key, the value and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from asap_ray.config import ServeConfig, config_from, config_to, fingerprint_of
from asap_ray.errors import ConfigError
from asap_ray.spec import Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType, paper

DEGREES = {"dp_groups": 2, "tp": 1, "moe_devices": 2}


def test_a_configuration_survives_the_wire() -> None:
    """config_from undoes config_to."""
    config = ServeConfig(
        model="m",
        parallel=ParallelSpec(dp_groups=3, tp=2, moe_devices=5),
        prefill=PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, combine=Combine.PER_EXPERT),
        compute_type=RowType.FLOAT32,
    )

    assert config_from(config_to(config)) == config


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"model": "m"}, "missing key 'parallel' in the configuration"),
        ({"model": 1, "parallel": DEGREES}, "model=1 must be of type str"),
        ({"model": "m", "parallel": {"tp_size": 1}}, "unknown key 'tp_size' in parallel"),
        ({"model": "m", "parallel": DEGREES | {"tp": True}}, "tp=True must be of type int"),
        ({"model": "m", "parallel": DEGREES | {"tp": 65}}, "tp=65 exceeds 64"),
        ({"model": "m", "parallel": DEGREES, "compute_type": "int4"}, "one of: float32, bfloat16, float16"),
        ({"model": "m", "parallel": DEGREES, "device": "tpu"}, "device='tpu' is not served yet"),
        ({"model": "m", "parallel": DEGREES, "threads": 0}, "threads, queue bounds"),
        ({"model": "m", "parallel": DEGREES, "max_queued_tokens": 5}, "max_queued_tokens=5"),
        ({"model": "m", "parallel": DEGREES, "orphan_timeout_s": float("nan")}, "orphan_timeout_s=nan must be finite"),
        ({"model": "m", "parallel": DEGREES, "orphan_timeout_s": 1}, "orphan_timeout_s=1.0 must be at least 30"),
        ("text", "must be a mapping"),
    ],
)
def test_a_wrong_configuration_is_named(mapping: Any, message: str) -> None:
    """Every mistake says which key, which value, and what would be right."""
    with pytest.raises(ConfigError, match=message):
        config_from(mapping)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tokens": 10, "solo_tokens": 6, "inflection_tokens": 1}, "solo_tokens=6 must be at most half"),
        ({"max_tokens": 10, "solo_tokens": 4, "inflection_tokens": 5}, "inflection_tokens=5 must lie in"),
        ({"max_tokens": 10, "solo_tokens": 4, "inflection_tokens": 1, "deadline_s": 0.0}, "deadline_s=0.0"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, Any], message: str) -> None:
    """Two batches in flight share the room of one, so a solo batch starts above half."""
    with pytest.raises(ConfigError, match=message):
        PrefillSpec(**limits)


def test_a_token_cannot_choose_one_expert_twice() -> None:
    """top_k is bounded by the number of experts."""
    with pytest.raises(ConfigError, match="top_k=9 exceeds num_experts=8"):
        ModelSpec(num_layers=1, hidden=1, num_experts=8, top_k=9)


def test_a_device_without_experts_is_refused() -> None:
    """E is bounded by the number of experts."""
    with pytest.raises(ConfigError, match="moe_devices=9 exceeds num_experts=8"):
        Instance(
            model=ModelSpec(num_layers=1, hidden=1, num_experts=8, top_k=2),
            parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=9),
            prefill=paper().prefill,
        )


def test_experts_need_not_divide_evenly() -> None:
    """Seven experts on three devices: 2, 2 and 3, each on exactly one."""
    instance = Instance(
        model=ModelSpec(num_layers=1, hidden=1, num_experts=7, top_k=2),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=3),
        prefill=paper().prefill,
    )

    assert [list(instance.experts_of(e)) for e in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]


def test_a_fingerprint_names_every_field() -> None:
    """What devices compare before they join holds the degrees, the limits and the checkpoint."""
    fields = fingerprint_of(ServeConfig(model="m", parallel=ParallelSpec(**DEGREES)), "weights")

    assert (fields["model"], fields["parallel.tp"], fields["prefill.combine"]) == ("weights", "1", "reduced")
