"""The passes between matrix products are torch's arithmetic, rounded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from asap_ray import _native
from asap_ray.models.fused import array_of, norm_and_rotate_, rms_norm, swiglu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-6, "atol": 1e-7},
    torch.bfloat16: {"rtol": 2**-8, "atol": 1e-7},  # a rounding to nearest
    torch.float16: {"rtol": 2**-11, "atol": 6e-8},
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 7, 32, 512, 768])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swiglu(dtype: torch.dtype, width: int) -> None:
    """Any width, not only whole vectors."""
    gate_up = (3 * random(5, 2 * width)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=1)

    actual = swiglu(gate_up)

    torch.testing.assert_close(actual.double(), functional.silu(gate) * up, **TOLERANCE[dtype])
    assert actual.dtype == dtype


def test_swiglu_where_the_exponential_leaves_float32() -> None:
    """Large gates pass, small ones close, and nothing but nan makes a nan."""
    gate = torch.tensor([-1e4, -100.0, -80.0, 0.0, 80.0, 1e4, torch.nan])
    gate_up = torch.cat((gate, torch.ones(7)))[None]

    actual = swiglu(gate_up)[0].tolist()

    assert actual[:6] == pytest.approx([0.0, 0.0, 0.0, 0.0, 80.0, 1e4], abs=1e-30)
    assert actual[6] != actual[6]


@pytest.mark.parametrize("width", [1, 31, 32, 100, 512])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm(dtype: torch.dtype, width: int) -> None:
    """Computed in float32 and rounded to the type that is asked for."""
    x, weight = random(6, width), random(width, seed=1)

    actual = rms_norm(x, weight, 1e-6, dtype)

    expected = functional.rms_norm(x.double(), (width,), weight.double(), 1e-6)
    torch.testing.assert_close(actual.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("head_dim", [2, 16, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_and_rotate(dtype: torch.dtype, head_dim: int) -> None:
    """Queries and keys by their own norm, pairs (d, d + D / 2) turned; values stay bit for bit."""
    num_queries, num_keys, half = 3, 2, head_dim // 2
    qkv = random(4, (num_queries + 2 * num_keys) * head_dim).to(dtype)
    norms = random(head_dim, seed=1), random(head_dim, seed=2)
    angles = random(4, half, seed=3).cos(), random(4, half, seed=3).sin()
    heads = qkv.double().view(4, -1, head_dim)
    weight = torch.stack([norms[0]] * num_queries + [norms[1]] * num_keys).double()
    normed = functional.rms_norm(heads[:, :5], (head_dim,), None, 1e-6) * weight
    (first, second), (cos, sin) = normed.split(half, dim=-1), (each.double()[:, None] for each in angles)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    scale = float(turned.abs().max())

    norm_and_rotate_(qkv, norms, angles, (num_queries, num_keys), 1e-6)

    actual = qkv.double().view(4, -1, head_dim)
    tolerance = {"rtol": TOLERANCE[dtype]["rtol"], "atol": 1e-6 * scale}  # differences of near equals
    torch.testing.assert_close(actual[:, :5], turned, **tolerance)
    assert torch.equal(actual[:, 5:], heads[:, 5:])


def test_no_rows_are_no_work() -> None:
    """A device without rows passes through every stage."""
    empty = torch.empty(0, 8)

    assert swiglu(empty).shape == (0, 4)
    assert rms_norm(empty, torch.ones(8), 1e-6).shape == (0, 8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a, _: _native.swiglu(a(2, 4), a(2, 6), "float32"), r"gate_up has shape \[2, 6\], expected \[2, 8\]"),
        (lambda a, b: _native.swiglu(a(2, 4), b(2, 8), "bfloat16"), "out and gate_up differ in type"),
        (lambda a, _: _native.swiglu(a(2, 4), a(2, 8), "int8"), "row type 'int8'"),
        (
            lambda a, _: _native.swiglu((x := a(20))[:8].reshape(2, 4), x[4:].reshape(2, 8), "float32"),
            "out and gate_up overlap",
        ),
        (lambda a, _: _native.rms_norm(x := a(2, 4), x, a(4), 1e-6, "float32"), "out and x overlap"),
        (
            lambda a, _: _native.norm_and_rotate(a(2, 4), a(4), a(4), a(2, 2), a(2, 2), 5, -2, 1e-6, "float32"),
            "num_queries=5 and num_keys=-2: 0 to 4",
        ),
        (lambda a, _: _native.rms_norm(a(2, 4), a(2, 4), a(3), 1e-6, "float32"), "weight must be a vector of 4"),
        (
            lambda a, _: _native.norm_and_rotate(a(2, 12), a(4), a(4), a(2, 2), a(1, 2), 1, 1, 1e-6, "float32"),
            r"sin has shape \[1, 2\], expected \[2, 2\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, text: str) -> None:
    """A wrong shape would read another's memory."""

    def floats(*shape: int) -> Any:
        return array_of(torch.ones(shape))

    def halves(*shape: int) -> Any:
        return array_of(torch.ones(shape, dtype=torch.bfloat16))

    with pytest.raises(ValueError, match=text):
        call(floats, halves)
