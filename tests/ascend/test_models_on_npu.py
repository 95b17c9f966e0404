"""Attention through the unmodified torch-npu wheel, on tensors of a die: a model gives what it gives on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.models_on_die import CASES, TOLERANCE, Case
from tests.ascend.npu_venv import run_module

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def found(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every case, from one process."""
    assert library
    folder = tmp_path_factory.mktemp("models")
    path = folder / "found.json"
    run_module("tests.ascend.models_on_npu", str(folder), timeout_s=390, ASAP_FOUND=str(path))
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_answers_as_on_the_host(found: dict[str, Any], case: Case) -> None:
    """Whole prompts, decode steps, chunks behind a prefix hit, in pages on the die."""
    outcome = found[str(case)]

    assert outcome.get("difference", outcome) < TOLERANCE[case.dtype]
    assert outcome["same_tokens"]
