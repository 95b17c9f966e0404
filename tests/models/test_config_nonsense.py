"""A config.json of any content: understood, or refused by name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asap_ray.errors import ConfigError
from asap_ray.models.families import read_config
from tests.models.test_deepseek_config import V32
from tests.models.test_qwen_config import PUBLISHED
from tests.nonsense import VALUES, damaged, spoilt

QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
SEVERAL = settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
ROPE = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}


def read(directory: Path, content: bytes) -> None:
    """Any other error than a ConfigError is a bug."""
    (directory / "config.json").write_bytes(content)
    with contextlib.suppress(ConfigError):
        read_config(directory)


@given(content=spoilt(PUBLISHED) | spoilt(V32) | spoilt(PUBLISHED | ROPE))
@SEVERAL
def test_a_spoilt_config_is_understood_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    """Any value under any key, two families."""
    read(tmp_path, json.dumps(content).encode())


@given(key=st.sampled_from(sorted(V32)), value=VALUES)
@SEVERAL
def test_every_key_may_hold_anything(tmp_path: Path, key: str, value: object) -> None:
    """One at a time, so that no other refusal hides it."""
    read(tmp_path, json.dumps(V32 | {key: value}).encode())


@given(content=damaged(json.dumps(PUBLISHED).encode()))
@SEVERAL
def test_a_damaged_config_is_understood_or_refused(tmp_path: Path, content: bytes) -> None:
    """Truncated, reordered, overwritten."""
    read(tmp_path, content)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": ["qwen3_moe"]}, r"model_type=\['qwen3_moe'\] must be one of"),
        ({"rope_theta": 10**400}, "rope_theta=10+ must be a positive number"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers=1000000000000 must be at most"),
    ],
    ids=["a list of types", "a number beyond float64", "layers beyond memory"],
)
def test_what_python_has_other_errors_for_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    """Found by the tests above, or looked for."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | changes))

    with pytest.raises(ConfigError, match=text):
        read_config(tmp_path)


def test_deep_nesting_is_refused_by_name(tmp_path: Path) -> None:
    """The parser would run out of stack."""
    (tmp_path / "config.json").write_text('{"a":' * 20_000)

    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        read_config(tmp_path)
