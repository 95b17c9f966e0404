"""Native float32 products are those of float64, whatever the shapes, however the rows fall, on one thread or three."""

# Shapes: S rows, A inputs, B outputs, R rows grouped by expert, E experts, H hidden, I intermediate.

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from asap_ray import _native
from asap_ray.models.matrix import Matrix, fill, fill_gate_up, multiply_swiglu, panels_for
from tests.csrc.team import needs_a_team

TOLERANCE = 2e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Of unit variance."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative to the largest number expected."""
    return float((actual.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("num_rows", [1, 2, 3, 6, 7, 13, 14, 15, 29, 171, 300])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(1, 1), (16, 32), (17, 33), (40, 31), (100, 200)])
def test_products_of_any_shape(num_rows: int, num_inputs: int, num_outputs: int) -> None:
    """Rows, inputs and columns that fill no tile, line or panel."""
    x_SA, weight_AB = random(num_rows, num_inputs), random(num_inputs, num_outputs, seed=1)

    assert error(Matrix(weight_AB)(x_SA), x_SA.double() @ weight_AB.double()) < TOLERANCE


def test_rows_beyond_one_chunk() -> None:
    """Rows that do not fit the cache together are done in chunks."""
    x_SA, weight_AB = random(400, 1000), random(1000, 70, seed=1)

    assert error(Matrix(weight_AB)(x_SA), x_SA.double() @ weight_AB.double()) < TOLERANCE


@needs_a_team
def test_threads_share_the_panels() -> None:
    """Three threads give the bits of one."""
    x_SA, panels = random(500, 300), torch.zeros(7, 300, 32)
    fill(panels, random(300, 200, seed=1))
    one, three = torch.empty(500, 200), torch.empty(500, 200)
    assert _native.SHAREABLE <= 2 * 500 * 300 * 200

    _native.multiply(one.numpy(), x_SA.numpy(), panels.numpy(), 1)
    _native.multiply(three.numpy(), x_SA.numpy(), panels.numpy(), 3)

    assert torch.equal(one, three)


@needs_a_team
@pytest.mark.parametrize("counts", [[300, 1, 211], [0, 512, 0]])
def test_threads_share_the_experts_panels(counts: list[int]) -> None:
    """Three threads give the bits of one, over several chunks of rows and experts without any."""
    hidden, width = 500, 90
    assert 6 * sum(counts) * hidden * width >= _native.SHAREABLE
    tables = [random(3, *shape, seed=seed).numpy() for seed, shape in enumerate(panels_for(hidden, width), start=1)]
    rows, num_rows = random(sum(counts), hidden).numpy(), np.array(counts, np.int32)
    one, three = np.empty_like(rows), np.empty_like(rows)

    _native.multiply_swiglu(one, rows, num_rows, *tables, 1)
    _native.multiply_swiglu(three, rows, num_rows, *tables, 3)

    assert np.array_equal(one, three)


@pytest.mark.parametrize("counts", [[3, 1, 20], [0, 0, 5], [0, 0, 0], [200, 0, 300]])
@pytest.mark.parametrize(("hidden", "width"), [(24, 16), (33, 21)])
def test_swiglu_of_each_expert(counts: list[int], hidden: int, width: int) -> None:
    """Each expert's rows by its own matrices; sizes that fill no panel."""
    gate, up = (random(3, hidden, width, seed=seed) / hidden**0.5 for seed in (1, 2))
    down = random(3, width, hidden, seed=3)
    tables = [torch.zeros(3, *shape) for shape in panels_for(hidden, width)]
    for expert in range(3):
        fill_gate_up(tables[0][expert], gate[expert], up[expert])
        fill(tables[1][expert], down[expert])
    rows_RH = random(sum(counts), hidden, seed=4)

    results_RH = multiply_swiglu(rows_RH, torch.tensor(counts, dtype=torch.int32), *tables)

    expert_R = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    x_R1H = rows_RH.double()[:, None]
    middle = functional.silu(x_R1H @ gate.double()[expert_R]) * (x_R1H @ up.double()[expert_R])
    expected_RH = (middle @ down.double()[expert_R])[:, 0]
    assert results_RH.shape == expected_RH.shape
    assert not sum(counts) or error(results_RH, expected_RH) < TOLERANCE


def test_panels_of_another_matrix_are_refused() -> None:
    """Inputs and panels must fit rows and results."""
    out, x = np.empty((2, 40), np.float32), np.zeros((2, 8), np.float32)

    with pytest.raises(ValueError, match=r"panels must be panels \[2, 8, 32\]"):
        _native.multiply(out, x, np.zeros((1, 8, 32), np.float32), 1)


def test_rows_that_no_expert_has_are_refused() -> None:
    """What would stay unwritten, or be read beyond the end."""
    x = np.zeros((3, 8), np.float32)
    tables = [np.zeros((2, *shape), np.float32) for shape in panels_for(8, 8)]

    with pytest.raises(ValueError, match="num_rows sum to 4, x has 3"):
        _native.multiply_swiglu(np.empty_like(x), x, np.array([1, 3], np.int32), *tables, 1)
