"""Experts in int8 (W8A8) are the float32 experts, rounded twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.models.int8_experts import Int8Table, quantise
from asap_ray.models.model import Model, load_model
from tests.models.divided import drive

Make = Callable[..., tuple[Path, Any]]
COUNTS = [3, 0, 40, 1, 0, 0, 0, 0, 0, 9]


@pytest.fixture
def model(transformers_model: Make) -> Model:
    """Ten experts a layer."""
    return load_model(transformers_model()[0])


def results_of(stage: Any, rows: torch.Tensor) -> torch.Tensor:
    """One item of the second layer."""
    return drive(stage.super_kernel(1, rows, torch.tensor(COUNTS, dtype=torch.int32)))


def test_results_are_within_two_percent(model: Model) -> None:
    """Root mean square of the error against that of the results; eight bits leave 1/254 of the largest a rounding."""
    rows = torch.randn(sum(COUNTS), 48, generator=torch.Generator().manual_seed(0))
    exact = results_of(model.expert_stage(range(10), torch.float32), rows)

    rounded = results_of(model.int8_expert_stage(range(10)), rows)

    assert float((rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt()) < 0.02


def test_bfloat16_rows_give_bfloat16_results(model: Model) -> None:
    """The weights do not care which type the rows have."""
    rows = torch.randn(sum(COUNTS), 48, generator=torch.Generator().manual_seed(0)).bfloat16()

    assert results_of(model.int8_expert_stage(range(10)), rows).dtype == torch.bfloat16


def test_products_of_small_integers_are_exact() -> None:
    """Where both sides are integers up to 127, nothing is lost."""
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randint(-127, 128, shape, generator=generator).float() for shape in ((6, 32), (16, 32)))
    rows[:, 0] = weight[:, 0] = 127
    table = Int8Table(1, 1, (16, 32))
    table.put(0, 0, weight)

    assert torch.equal(table.multiply(0, 0, rows), rows @ weight.T)


def test_a_row_of_zeros_stays_one() -> None:
    """It has no largest number to be scaled by."""
    quantised, scale = quantise(torch.zeros(1, 4))

    assert (quantised.tolist(), scale.tolist()) == ([[0, 0, 0, 0]], [[1.0]])


def test_rows_are_left_as_they_were(model: Model) -> None:
    """They may be a view of a shared buffer."""
    rows = torch.randn(sum(COUNTS), 48, generator=torch.Generator().manual_seed(1))
    before = rows.clone()

    results_of(model.int8_expert_stage(range(10)), rows)

    assert torch.equal(rows, before)
