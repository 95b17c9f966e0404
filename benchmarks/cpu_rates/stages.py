"""Floating-point rates of single stages on one thread, beside those of plain matrix products."""

# Shapes: S tokens, H hidden, A what a layer compresses a row to, R rows grouped by expert, E experts.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.models import gqa, mla
from asap_ray.models.model import Model
from asap_ray.models.passes import Sequence

TOKENS: Final = 2048
SQUARE: Final = (1024, 1024, 1024)


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time: it takes the number of a layer, so that weights come from memory as in service."""

    run: Callable[[int], object]
    flops: int  # of its matrix products alone
    num_layers: int


def products(model: Model, rows_an_expert: int) -> dict[str, Work]:
    """`torch.mm` of the model's own shapes: an expert's two matrices, and a square one."""
    hidden, width = model.config.hidden, model.config.moe_intermediate
    shapes = {(TOKENS, hidden, hidden), (rows_an_expert, hidden, 2 * width), (rows_an_expert, width, hidden), SQUARE}
    return {f"mm {m} x {k} x {n}": _product(m, k, n) for m, k, n in sorted(shapes)}


def _product(m: int, k: int, n: int) -> Work:
    x_mk, weights = torch.randn(m, k), [torch.randn(n, k).T for _ in range(4)]
    return Work(lambda layer: torch.mm(x_mk, weights[layer]), 2 * m * k * n, len(weights))


def moe_stage(model: Model) -> Work:
    """The super kernel of all experts on one device, an item of so many tokens that fall at random."""
    config, num_layers = model.config, model.spec.num_layers
    stage = model.expert_stage(range(config.num_experts), torch.float32)
    num_rows = TOKENS * model.spec.top_k
    experts_R = torch.randint(config.num_experts, (num_rows,), generator=torch.Generator().manual_seed(0))
    num_rows_E = experts_R.bincount(minlength=config.num_experts).int()
    rows_RH = torch.randn(num_rows, config.hidden)
    flops = 6 * num_rows * config.hidden * config.moe_intermediate
    return Work(lambda layer: drive(stage.super_kernel(layer, rows_RH, num_rows_E)), flops, num_layers)


def attention(model: Model) -> Work:
    """Attention of one prompt, whole."""
    run, num_layers = _attention(model)
    sizes: Any = model.config.attention
    width = sizes.head_dim + getattr(sizes, "value_dim", sizes.head_dim)
    pairs = TOKENS * (TOKENS + 1) // 2
    return Work(run, _projection_flops(model) + 2 * pairs * sizes.num_heads * width, num_layers)


def projections(model: Model) -> Work:
    """The same without softmax and its two products: projections, norms, rotation, copies."""
    run, num_layers = _attention(model)

    def around(layer: int) -> object:
        with without_core():
            return run(layer)

    return Work(around, _projection_flops(model), num_layers)


@contextmanager
def without_core() -> Iterator[None]:
    """Each query is its own answer meanwhile."""

    def same(query_nND: torch.Tensor, _: torch.Tensor, value_GmV: torch.Tensor) -> torch.Tensor:
        return query_nND[..., : value_GmV.shape[-1]]

    with mock.patch.object(gqa, "attend", same), mock.patch.object(mla, "attend", same):
        yield


def _attention(model: Model) -> tuple[Callable[[int], object], int]:
    decoder = model.attention_stage(SoloCollective(), torch.float32)
    layers: list[Any] = [layer.attention for layer in decoder._layers]
    hidden_SH = torch.randn(TOKENS, model.config.hidden)
    angles = model.config.attention.rope.angles_at(torch.arange(TOKENS))
    sequences = [Sequence(slice(0, TOKENS))]

    def run(layer: int) -> object:
        return layers[layer](layers[layer].compress(hidden_SH), angles, sequences)

    return run, len(layers)


def _projection_flops(model: Model) -> int:
    """Two for each element of its matrices, a token."""
    sizes: Any = model.config.attention
    hidden, heads = model.config.hidden, sizes.num_heads
    if not isinstance(sizes, mla.Latent):
        return 2 * TOKENS * hidden * sizes.head_dim * (2 * heads + 2 * sizes.num_kv_heads)
    down = hidden * (sizes.query_rank + sizes.kept_dim) + sizes.query_rank * heads * sizes.head_dim
    up = sizes.latent_rank * heads * (sizes.nope_dim + sizes.value_dim) + heads * sizes.value_dim * hidden
    return 2 * TOKENS * (down + up)


def seconds(work: Work, round_idx: int) -> float:
    """One call, at a layer of its own."""
    began_s = time.perf_counter()
    work.run(round_idx % work.num_layers)
    return time.perf_counter() - began_s
