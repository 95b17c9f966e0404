"""The SwiGLU MLP every token goes through: of a dense layer, or a MoE layer's shared experts; split over the ranks."""

# Shapes: S tokens, H hidden, I this rank's part of the intermediate size, J = 2 I.

from __future__ import annotations

import torch

from asap_ray.models.matrix import fill, fill_gate_up, lies_in_panels, multiply_swiglu, panels_for
from asap_ray.models.weights import Shard


class DenseMLP:
    """Weights of one layer on rank j; `name` is their place in the checkpoint, `width` the intermediate size."""

    def __init__(self, shard: Shard, name: str, hidden: int, width: int) -> None:
        gate_HI, up_HI = (
            shard.column_parallel(f"{name}.{half}_proj.weight", (width, hidden)) for half in ("gate", "up")
        )
        down_IH = shard.row_parallel(f"{name}.down_proj.weight", (hidden, width))
        self._num_inner = len(down_IH)
        self._swiglu = shard.kernels.swiglu
        self._is_in_panels = lies_in_panels(down_IH)
        if self._is_in_panels:
            self._gate_up, self._down = (torch.zeros(shape) for shape in panels_for(hidden, self._num_inner))
            fill_gate_up(self._gate_up, gate_HI, up_HI)
            fill(self._down, down_IH)
        else:
            self._gate_up, self._down = torch.cat((gate_HI, up_HI), dim=1), down_IH

    def workspace(self, num_tokens: int) -> int:
        """Numbers it makes on the way of so many tokens: gate, up and their product."""
        return 3 * num_tokens * self._num_inner

    def __call__(self, hidden_SH: torch.Tensor) -> torch.Tensor:
        """This rank's part of the output sum, [S, H]."""
        if self._is_in_panels:
            num_rows = torch.tensor([len(hidden_SH)], dtype=torch.int32)
            return multiply_swiglu(hidden_SH, num_rows, self._gate_up[None], self._down[None])
        return self._swiglu(hidden_SH @ self._gate_up) @ self._down
