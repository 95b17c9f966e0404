"""Attention by torch-npu's operators, as documented: a model gives what it gives on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ascend import documented
from tests.ascend.models_on_die import CASES, TOLERANCE, Case, error_of


@pytest.fixture(scope="module", autouse=True)
def _documented() -> Iterator[None]:
    library = documented.define()
    yield
    library._destroy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the checkpoints."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_answers_as_on_the_host(case: Case, folder: Path) -> None:
    """Whole prompts, decode steps, chunks behind a prefix hit."""
    found = error_of(case, "cpu", folder)

    assert found["difference"] < TOLERANCE[case.dtype]
    assert found["same_tokens"]
