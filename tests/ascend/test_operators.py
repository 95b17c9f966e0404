"""Operators of torch-npu, as documented, against the CPU's function each stands for."""

# Shapes: see asap_ray/backends/ascend/operators.py.

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator

import pytest
import torch

from asap_ray.backends.ascend import operators
from asap_ray.errors import ConfigError
from asap_ray.models import fused, gqa
from asap_ray.models.experts import ExpertStage
from asap_ray.models.rope import Rope, rotate_
from tests.ascend import documented

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(scope="module", autouse=True)
def _documented() -> Iterator[None]:
    library = documented.define()
    yield
    library._destroy()


@pytest.fixture
def generator() -> torch.Generator:
    """Numbers that are the same each time."""
    return torch.Generator().manual_seed(5)


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """In shape, type and, up to rounding of the type, in value."""
    tolerance = TOLERANCE[reference.dtype]
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(generator: torch.Generator, dtype: torch.dtype) -> None:
    """Float32 in, either type out."""
    x_SH, weight_H = (torch.randn(*shape, generator=generator) for shape in ((5, 48), (48,)))

    assert_close(operators.rms_norm(x_SH, weight_H, 1e-6, dtype), fused.rms_norm(x_SH, weight_H, 1e-6, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(generator: torch.Generator, dtype: torch.dtype) -> None:
    """The gate is the first half for both."""
    gate_up_RJ = torch.randn(7, 24, generator=generator).to(dtype)

    assert_close(operators.swiglu(gate_up_RJ), fused.swiglu(gate_up_RJ))


@pytest.mark.parametrize("dim", [16, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotate(generator: torch.Generator, dtype: torch.dtype, dim: int) -> None:
    """In place, whole heads or the first part of each."""
    heads_SND = torch.randn(5, 3, 16, generator=generator).to(dtype)
    angles_SF = Rope(dim=dim, theta=10000.0).angles_at(torch.arange(5) + 3)
    ours_SND, reference_SND = heads_SND.clone(), heads_SND.clone()

    operators.rotate_(ours_SND, angles_SF)
    rotate_(reference_SND, angles_SF)

    assert_close(ours_SND, reference_SND)


@pytest.mark.parametrize(("num_new", "num_keys"), [(1, 1), (1, 9), (6, 6), (4, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attend(generator: torch.Generator, dtype: torch.dtype, num_new: int, num_keys: int) -> None:
    """A decode step, a whole prompt, a chunk behind a prefix; two heads share a key."""
    query_nND = torch.randn(num_new, 4, 16, generator=generator).to(dtype)
    key_GmD, value_GmD = torch.randn(2, 2, num_keys, 16, generator=generator).to(dtype)

    assert_close(operators.attend(query_nND, key_GmD, value_GmD), gqa.attend(query_nND, key_GmD, value_GmD))


def test_values_may_be_narrower(generator: torch.Generator) -> None:
    """In float32: the latents of MLA need no padding, as they do on the CPU."""
    query_nND, key_GmD = torch.randn(4, 2, 16, generator=generator), torch.randn(2, 9, 16, generator=generator)
    value_GmV = torch.randn(2, 9, 10, generator=generator)
    padded_GmD = torch.nn.functional.pad(value_GmV, (0, 6))

    assert_close(operators.attend(query_nND, key_GmD, value_GmV), gqa.attend(query_nND, key_GmD, padded_GmD)[..., :10])


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_experts(generator: torch.Generator, dtype: torch.dtype) -> None:
    """The stand-in of the super kernel, with an expert that has no rows."""
    gate_up_LEJH = torch.randn(1, 3, 24, 20, generator=generator).to(dtype)
    down_LEHI = torch.randn(1, 3, 20, 12, generator=generator).to(dtype)
    rows_RH = (torch.randn(7, 20, generator=generator) / 20).to(dtype)
    num_rows_E = torch.tensor([4, 0, 3])

    ours_RH = operators.grouped_experts(rows_RH, num_rows_E, gate_up_LEJH[0].mT, down_LEHI[0].mT)

    stage = ExpertStage(gate_up_LEJH, down_LEHI)
    assert_close(ours_RH, asyncio.run(stage.super_kernel(0, rows_RH, num_rows_E)))


def test_counts_of_another_type_are_refused() -> None:
    """The operator would read them as half as many."""
    with pytest.raises(ConfigError, match=r"num_rows_E is torch\.int32"):
        operators.grouped_experts(torch.ones(1, 2), torch.tensor([1]).int(), torch.ones(1, 2, 4), torch.ones(1, 2, 2))


@pytest.mark.parametrize("name", operators.REFERENCES)
def test_every_operator_names_the_function_it_stands_for(name: str) -> None:
    """Both exist."""
    module, _, path = operators.REFERENCES[name].partition(".models.")
    file, *attributes = path.split(".")
    found = importlib.import_module(f"{module}.models.{file}")
    for attribute in attributes:
        found = getattr(found, attribute)

    assert callable(getattr(operators, name))
    assert callable(found)
