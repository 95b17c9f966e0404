"""Routed experts by torch-npu's grouped products: for matrices that the super kernel has no tiling for."""

# Shapes: L MoE layers, E experts of this device, R rows grouped by expert, H hidden, I intermediate, J = 2 I.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from asap_ray.backends.ascend import operators
from asap_ray.backends.ascend.ops import settle

MOST_EXPERTS: Final = 128
"""Of one call of `npu_grouped_matmul`."""


class GroupedExperts:
    """`MoEStage` over items of the die; four launches a layer at least, from the host, unlike 3.4.2."""

    def __init__(self, die: Any, gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> None:
        """Weights on the die, each [in, out], rows side by side: transposed there they would need twice their room."""
        self._die = die
        self._gate_up_LEHJ = gate_up_LEHJ
        self._down_LEIH = down_LEIH

    async def super_kernel(self, layer: int, rows_RH: Any, num_rows_E: torch.Tensor) -> Any:
        """See `MoEStage`; rows are an item, and results go where it has room for them."""
        item, weights = rows_RH, self._gate_up_LEHJ
        if item.num_rows:
            with torch.inference_mode():
                x_RH = weights.new_empty(item.num_rows, weights.shape[2])
                settle(x_RH)
                self._die.copy(x_RH.data_ptr(), item.rows_at, x_RH.nbytes)
                results_RH = torch.cat([*self._sections(layer, x_RH, num_rows_E)])
                settle(results_RH)
                self._die.copy(item.results_at, results_RH.data_ptr(), results_RH.nbytes)
        return item

    def _sections(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> Iterator[torch.Tensor]:
        """Results of as many experts as one call takes, those without a row left out."""
        start = 0
        for first in range(0, len(num_rows_E), MOST_EXPERTS):
            experts = slice(first, first + MOST_EXPERTS)
            counts_E = num_rows_E[experts].long()
            stop = start + int(counts_E.sum())
            if stop > start:
                matrices = self._gate_up_LEHJ[layer, experts], self._down_LEIH[layer, experts]
                yield operators.grouped_experts(rows_RH[start:stop], counts_E.to(rows_RH.device), *matrices)
            start = stop
