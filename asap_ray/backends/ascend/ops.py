"""`torch.ops.asap`: the primitives and the super kernel as operators on tensors of the host or of an Ascend die.

An endpoint is opened by a backend and known to operators by a number, as `comm_id` is in
`torch.ops.afd_ascend` (docs/ascend.md maps the two). The one-element anchors only order operators
in a graph. CPU tensors take the host's endpoints, PrivateUse1 tensors those of a die.
"""

# Shapes: S tokens, H hidden, K experts per token, R rows on a MoE device, E its experts.

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from asap_ray import _native
from asap_ray.backends.host_comm import tensor_of
from asap_ray.models.fused import array_of

SCHEMAS: Final = (
    "async_dispatch_send(Tensor hidden, Tensor expert_ids, Tensor weights, int comm, int slot, int layer, "
    "float timeout_s) -> Tensor",
    "async_dispatch_recv(Tensor anchor, int comm, int hidden, int num_experts, ScalarType dtype, float timeout_s) "
    "-> (Tensor rows, Tensor num_rows, Tensor ticket)",
    "async_combine_send(Tensor results, Tensor ticket, int comm) -> Tensor",
    "async_combine_recv(Tensor anchor, int comm, int slot, int num_tokens, int hidden, ScalarType dtype, "
    "float timeout_s) -> Tensor",
    "super_kernel(Tensor rows, Tensor num_rows, Tensor ticket, int experts) -> Tensor",
)

TICKET: Final = ("dp_group", "slot", "layer", "num_rows", "item")
"""int64 each. It goes back unchanged to `async_combine_send`."""

_numbers: Final = itertools.count(1)
_endpoints: Final[dict[int, Any]] = {}
_items: Final[dict[int, Any]] = {}
_sent: Final[dict[tuple[int, int], torch.Tensor]] = {}
"""By comm and slot: rows that a die may have to send again while their results are out."""


@dataclass(frozen=True, slots=True)
class DieEndpoint:
    """What PrivateUse1 operators work with: a native endpoint or super kernel, and its die."""

    native: Any
    die: _native.ascend.Die


def register(endpoint: Any) -> int:
    """The number by which operators know a native endpoint, a `MoEStage` or a `DieEndpoint`."""
    number = next(_numbers)
    _endpoints[number] = endpoint
    return number


def _anchor(like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(1, dtype=torch.int8)


def settle(like: torch.Tensor) -> None:
    """Wait for what the current stream of a die still does to its tensors: our kernels have streams of their own."""
    torch.get_device_module(like.device).current_stream(like.device).synchronize()


def _ticket(item: Any) -> torch.Tensor:
    number = next(_numbers)
    _items[number] = item
    return torch.tensor([item.dp_group, item.slot, item.layer, item.num_rows, number])


def _send_cpu(
    hidden: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    comm: int,
    slot: int,
    layer: int,
    timeout_s: float,
) -> torch.Tensor:
    choices = expert_ids.numpy(), weights.numpy()
    _endpoints[comm].async_dispatch_send(slot, layer, array_of(hidden), *choices, timeout_s)
    return _anchor(hidden)


def _take_cpu(
    anchor: torch.Tensor, comm: int, hidden: int, num_experts: int, dtype: torch.dtype, timeout_s: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del anchor, hidden, num_experts
    item = _endpoints[comm].async_dispatch_recv(timeout_s)
    return tensor_of(item.rows, dtype).clone(), torch.from_numpy(item.num_rows_E).clone(), _ticket(item)


def _reply_cpu(results: torch.Tensor, ticket: torch.Tensor, comm: int) -> torch.Tensor:
    _endpoints[comm].async_combine_send(_items.pop(int(ticket[-1])), array_of(results))
    return _anchor(results)


def _receive_cpu(
    anchor: torch.Tensor, comm: int, slot: int, num_tokens: int, hidden: int, dtype: torch.dtype, timeout_s: float
) -> torch.Tensor:
    out_SH = anchor.new_empty((num_tokens, hidden), dtype=dtype)
    _endpoints[comm].async_combine_recv(slot, array_of(out_SH), timeout_s)
    return out_SH


def _compute_cpu(rows: torch.Tensor, num_rows: torch.Tensor, ticket: torch.Tensor, experts: int) -> torch.Tensor:
    result: torch.Tensor = asyncio.run(_endpoints[experts].super_kernel(int(ticket[2]), rows, num_rows))
    return result


def _send_die(
    hidden: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    comm: int,
    slot: int,
    layer: int,
    timeout_s: float,
) -> torch.Tensor:
    hidden, expert_ids, weights = hidden.contiguous(), expert_ids.contiguous(), weights.contiguous()
    settle(hidden)
    addresses = hidden.data_ptr(), expert_ids.data_ptr(), weights.data_ptr()
    _sent[comm, slot] = hidden
    _endpoints[comm].native.async_dispatch_send_on_die(slot, layer, len(hidden), *addresses, timeout_s)
    return _anchor(hidden)


def _take_die(
    anchor: torch.Tensor, comm: int, hidden: int, num_experts: int, dtype: torch.dtype, timeout_s: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del num_experts
    endpoint = _endpoints[comm]
    item = endpoint.native.async_dispatch_recv(timeout_s)
    rows_RH = anchor.new_empty((item.num_rows, hidden), dtype=dtype)
    settle(anchor)
    if item.num_rows:
        endpoint.die.copy(rows_RH.data_ptr(), item.rows_at, rows_RH.nbytes)
    return rows_RH, torch.from_numpy(item.num_rows_E).clone(), _ticket(item)


def _reply_die(results: torch.Tensor, ticket: torch.Tensor, comm: int) -> torch.Tensor:
    settle(results)
    _endpoints[comm].native.async_combine_send_on_die(_items.pop(int(ticket[-1])), results.data_ptr())
    return _anchor(results)


def _receive_die(
    anchor: torch.Tensor, comm: int, slot: int, num_tokens: int, hidden: int, dtype: torch.dtype, timeout_s: float
) -> torch.Tensor:
    out_SH = anchor.new_empty((num_tokens, hidden), dtype=dtype)
    settle(anchor)
    _endpoints[comm].native.async_combine_recv_on_die(slot, out_SH.data_ptr(), timeout_s)
    del _sent[comm, slot]
    return out_SH


def _compute_die(rows: torch.Tensor, num_rows: torch.Tensor, ticket: torch.Tensor, experts: int) -> torch.Tensor:
    del num_rows
    results_RH = torch.empty_like(rows)
    settle(rows)
    _endpoints[experts].native.run(_items[int(ticket[-1])], results_RH.data_ptr())
    return results_RH


def _take_meta(
    anchor: torch.Tensor, comm: int, hidden: int, num_experts: int, dtype: torch.dtype, timeout_s: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del comm, timeout_s
    num_rows = torch.library.get_ctx().new_dynamic_size()  # known only when they have arrived
    counts_E = torch.empty(num_experts, dtype=torch.int32)
    return anchor.new_empty((num_rows, hidden), dtype=dtype), counts_E, torch.empty(len(TICKET), dtype=torch.int64)


def _receive_meta(
    anchor: torch.Tensor, comm: int, slot: int, num_tokens: int, hidden: int, dtype: torch.dtype, timeout_s: float
) -> torch.Tensor:
    del comm, slot, timeout_s
    return anchor.new_empty((num_tokens, hidden), dtype=dtype)


KERNELS: Final = {
    "CPU": (_send_cpu, _take_cpu, _reply_cpu, _receive_cpu, _compute_cpu),
    "PrivateUse1": (_send_die, _take_die, _reply_die, _receive_die, _compute_die),
}
"""By dispatch key, in the order of `SCHEMAS`."""


def _define() -> torch.library.Library:
    library = torch.library.Library("asap", "DEF")  # type: ignore[no-untyped-call]
    names = [schema.partition("(")[0] for schema in SCHEMAS]
    for schema in SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    for key, kernels in KERNELS.items():
        for name, kernel in zip(names, kernels, strict=True):
            library.impl(name, kernel, key)  # type: ignore[no-untyped-call]
    metas: tuple[Callable[..., Any], ...] = (
        lambda hidden, *_: _anchor(hidden),
        _take_meta,
        lambda results, *_: _anchor(results),
        _receive_meta,
        lambda rows, *_: torch.empty_like(rows),
    )
    for name, meta in zip(names, metas, strict=True):
        torch.library.register_fake(f"asap::{name}", meta, lib=library)
    return library


LIBRARY: Final = _define()
"""Operators are there for as long as it is."""
