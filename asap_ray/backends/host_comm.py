"""What the engine works with on a host: the native primitives over tensors."""

# Shapes: S rows of this rank, H hidden, R rows on a MoE device.

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np
import torch

from asap_ray.errors import CorruptMessage, PeerTimeout
from asap_ray.layout import Layout
from asap_ray.models.fused import array_of
from asap_ray.protocol import Routed, WorkItem
from asap_ray.spec import NUM_SLOTS, RowType
from asap_ray.telemetry.received import Received

_log = logging.getLogger(__name__)

DTYPES: Final = {
    RowType.FLOAT32: torch.float32,
    RowType.BFLOAT16: torch.bfloat16,
    RowType.FLOAT16: torch.float16,
}


def tensor_of(rows: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Rows as torch sees them. A zero-row array has no strides in numpy, and torch's kernels refuse it."""
    if not len(rows):
        return torch.empty(rows.shape, dtype=dtype)
    rows_RH = torch.from_numpy(rows)
    return rows_RH if dtype is torch.float32 else rows_RH.view(dtype)


class HostAttentionComm:
    """`AttentionComm` over shared memory. `combine_recv` reuses its output: use it before the slot's next one."""

    def __init__(self, native: Any, layout: Layout, dtype: torch.dtype, deadline_s: float) -> None:
        self._native = native
        self._deadline_s = deadline_s
        self._num_rows = [0] * NUM_SLOTS
        self._out = torch.empty(NUM_SLOTS, NUM_SLOTS * layout.slot_rows, layout.hidden, dtype=dtype)

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`."""
        self._num_rows[slot] = len(routed.hidden_SH)
        self._native.async_dispatch_send(
            slot,
            layer,
            array_of(routed.hidden_SH),
            routed.expert_ids_SK.numpy(),
            routed.weights_SK.numpy(),
            self._deadline_s,
        )

    async def combine_recv(self, slot: int) -> torch.Tensor:
        """See `AttentionComm`."""
        out_SH = self._out[slot, : self._num_rows[slot]]
        self._native.async_combine_recv(slot, array_of(out_SH), self._deadline_s)
        return out_SH


class HostMoEComm:
    """`MoEComm` over shared memory."""

    def __init__(self, native: Any, received: Received, dtype: torch.dtype, deadline_s: float) -> None:
        self._native = native
        self._received = received
        self._dtype = dtype
        self._deadline_s = deadline_s

    async def dispatch_recv(self) -> WorkItem:
        """See `MoEComm`; an idle device waits for ever, for the rest of a message only until the deadline."""
        item = self._receive()
        self._received.add(item.layer, item.num_tokens, item.num_rows_E)
        return WorkItem(
            dp_group=item.dp_group,
            slot=item.slot,
            layer=item.layer,
            num_rows=item.num_rows,
            num_rows_E=torch.from_numpy(item.num_rows_E),
            rows_RH=self.rows_of(item),
            ticket=item,
            found_s=item.found_s,
        )

    def _receive(self) -> Any:
        while True:
            try:
                return self._native.async_dispatch_recv(self._deadline_s)
            except CorruptMessage as error:  # dropped: its sender gives up at its deadline, the others go on
                self._received.num_dropped += 1
                _log.error("dropped a message: %s", error)
            except PeerTimeout as error:  # a group is stuck or gone: its owner replaces it, the others go on
                _log.error("still waiting: %s", error)

    async def combine_send(self, work: WorkItem, results_RH: torch.Tensor) -> None:
        """See `MoEComm`."""
        self.send_results(work.ticket, results_RH)

    def rows_of(self, item: Any) -> Any:
        """An item's rows as the stage takes them."""
        return tensor_of(item.rows, self._dtype)

    def send_results(self, item: Any, results_RH: Any) -> None:
        """What the stage made of them."""
        self._native.async_combine_send(item, array_of(results_RH))
