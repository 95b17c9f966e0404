"""Experts by grouped products, in the place of the super kernel."""

# Shapes: see asap_ray/backends/ascend/grouped_experts.py.

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from asap_ray.backends.ascend import grouped_experts
from asap_ray.backends.ascend.grouped_experts import GroupedExperts
from asap_ray.backends.threads import drive
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.models.experts import ExpertStage
from asap_ray.spec import ExpertType, ParallelSpec
from tests.ascend import documented


@pytest.fixture(autouse=True)
def _documented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(grouped_experts, "settle", lambda _: None)
    library = documented.define()
    yield
    library._destroy()


@pytest.mark.parametrize("most_experts", [128, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_those_of_the_cpu(most_experts: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one call for all experts, or in several, one of which has nothing to do."""
    monkeypatch.setattr(grouped_experts, "MOST_EXPERTS", most_experts)
    generator = torch.Generator().manual_seed(3)
    gate_up_LEJH, down_LEHI, rows_RH = (
        (torch.randn(*shape, generator=generator) / 4).to(dtype) for shape in ((2, 5, 24, 20), (2, 5, 20, 12), (7, 20))
    )
    num_rows_E = torch.tensor([4, 1, 0, 0, 2], dtype=torch.int32)
    results_RH = torch.zeros_like(rows_RH)
    item = SimpleNamespace(num_rows=7, rows_at=rows_RH.data_ptr(), results_at=results_RH.data_ptr())
    die = SimpleNamespace(copy=ctypes.memmove)

    drive(
        GroupedExperts(die, gate_up_LEJH.mT.contiguous(), down_LEHI.mT.contiguous()).super_kernel(1, item, num_rows_E)
    )

    expected_RH = drive(ExpertStage(gate_up_LEJH, down_LEHI).super_kernel(1, rows_RH, num_rows_E))
    torch.testing.assert_close(results_RH, expected_RH, rtol=2e-2, atol=2e-2 if dtype is torch.bfloat16 else 1e-5)


def test_int8_has_no_grouped_products() -> None:
    """Refused when the configuration is read."""
    alone = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)

    with pytest.raises(ConfigError, match="expert_kernel='grouped_matmul' with expert_type=int8"):
        ServeConfig(
            model="m", device="npu", parallel=alone, expert_kernel="grouped_matmul", expert_type=ExpertType.INT8
        )
