"""The super kernel is every expert's SwiGLU, whatever the layer and however the rows fall."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from asap_ray.models.experts import ExpertStage, PanelExpertStage
from asap_ray.protocol import MoEStage
from tests.models.divided import drive

NUM_LAYERS, NUM_EXPERTS, HIDDEN, WIDTH = 3, 5, 24, 16


@pytest.fixture(scope="module")
def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Random weights of all layers, [in, out]."""
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(NUM_LAYERS, NUM_EXPERTS, HIDDEN, 2 * WIDTH, generator=generator) / HIDDEN**0.5,
        torch.randn(NUM_LAYERS, NUM_EXPERTS, WIDTH, HIDDEN, generator=generator) / WIDTH**0.5,
    )


def stage_of(tables: tuple[torch.Tensor, ...]) -> ExpertStage:
    """The stage keeps matrices as checkpoints do, [out, in]."""
    return ExpertStage(*(table.mT.contiguous() for table in tables))


def panel_stage_of(tables: tuple[torch.Tensor, torch.Tensor]) -> PanelExpertStage:
    """The stage of float32 lays them out, one expert after the other."""
    stage = PanelExpertStage(NUM_LAYERS, NUM_EXPERTS, HIDDEN, WIDTH)
    for layer in range(NUM_LAYERS):
        for expert in range(NUM_EXPERTS):
            gate_up_JH, down_HI = (table[layer, expert].T for table in tables)
            stage.put(layer, expert, (gate_up_JH[:WIDTH], gate_up_JH[WIDTH:], down_HI))
    return stage


def one_by_one(
    tables: tuple[torch.Tensor, torch.Tensor], layer: int, rows: torch.Tensor, counts: list[int]
) -> torch.Tensor:
    """The definition: each row through its expert, alone."""
    experts = [expert for expert, count in enumerate(counts) for _ in range(count)]
    out = [rows[:0]]
    for row, expert in zip(rows, experts, strict=True):
        gate, up = (row @ tables[0][layer, expert]).chunk(2)
        out.append(((functional.silu(gate) * up) @ tables[1][layer, expert])[None])
    return torch.cat(out)


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
@pytest.mark.parametrize(
    "counts", [[2, 1, 3, 1, 2], [0, 0, 7, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [40, 0, 1, 0, 9]]
)
@pytest.mark.parametrize("make", [stage_of, panel_stage_of])
def test_rows_go_through_their_experts(
    make: Callable[..., MoEStage], tables: tuple[torch.Tensor, torch.Tensor], layer: int, counts: list[int]
) -> None:
    """Experts without rows and items without rows are ordinary."""
    rows = torch.randn(sum(counts), HIDDEN, generator=torch.Generator().manual_seed(layer))

    results = drive(make(tables).super_kernel(layer, rows, torch.tensor(counts, dtype=torch.int32)))

    torch.testing.assert_close(results, one_by_one(tables, layer, rows, counts), rtol=1e-4, atol=1e-5)


def test_bfloat16_rows_give_bfloat16_results(tables: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The compute type is the type of rows, weights and results."""
    counts = [4, 0, 3, 9, 1]
    rows = torch.randn(sum(counts), HIDDEN, generator=torch.Generator().manual_seed(5)).bfloat16()
    narrow = tuple(table.bfloat16() for table in tables)

    results = drive(stage_of(narrow).super_kernel(1, rows, torch.tensor(counts, dtype=torch.int32)))

    exact = one_by_one(tuple(table.float() for table in narrow), 1, rows.float(), counts)
    assert results.dtype == torch.bfloat16
    torch.testing.assert_close(results.float(), exact, rtol=0.03, atol=0.02)


@pytest.mark.parametrize("make", [stage_of, panel_stage_of])
def test_rows_are_left_as_they_were(make: Callable[..., MoEStage], tables: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The kernel writes into memory of its own: rows may be a view of a shared buffer."""
    rows = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(6))
    before = rows.clone()

    drive(make(tables).super_kernel(0, rows, torch.tensor([1, 1, 1, 0, 0], dtype=torch.int32)))

    assert torch.equal(rows, before)
