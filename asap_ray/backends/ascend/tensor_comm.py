"""The attention side of the primitives by `torch.ops.asap`, on tensors of a die (torch-npu)."""

# Shapes: S rows of this rank, H hidden, K experts per token.

from __future__ import annotations

from typing import Final

import torch

from asap_ray.backends.ascend import ops
from asap_ray.protocol import Routed
from asap_ray.spec import NUM_SLOTS

DEVICE: Final = "npu"
"""The first that this process sees."""


class TensorComm:
    """`AttentionComm`, on rows of the die where attention computes."""

    def __init__(self, endpoint: ops.DieEndpoint, hidden: int, dtype: torch.dtype, deadline_s: float) -> None:
        self._number = ops.register(endpoint)
        self._hidden = hidden
        self._dtype = dtype
        self._deadline_s = deadline_s
        self._num_rows = [0] * NUM_SLOTS
        self._anchors = [torch.empty(1, dtype=torch.int8)] * NUM_SLOTS  # of the message in flight

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`."""
        self._num_rows[slot] = len(routed.hidden_SH)
        rows = routed.hidden_SH, routed.expert_ids_SK, routed.weights_SK
        self._anchors[slot] = torch.ops.asap.async_dispatch_send(*rows, self._number, slot, layer, self._deadline_s)

    async def combine_recv(self, slot: int) -> torch.Tensor:
        """See `AttentionComm`."""
        shape = self._num_rows[slot], self._hidden, self._dtype
        out_SH: torch.Tensor = torch.ops.asap.async_combine_recv(
            self._anchors[slot], self._number, slot, *shape, self._deadline_s
        )
        return out_SH
