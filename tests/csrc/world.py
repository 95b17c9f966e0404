"""One prefill instance inside a process: every rank, every device, experts that multiply."""

# Shapes: S tokens, H hidden, K experts per token, R rows on one MoE device, E its experts.

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asap_ray import _native
from asap_ray.layout import Layout, layout_of
from asap_ray.placement import Placement
from asap_ray.spec import NUM_SLOTS, Combine, Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType
from tests.csrc.kinds import HostKind, Kind

EPOCH = (3 << 32) + 7  # both halves of it count
PATIENCE_S = 20.0
SLOT_ROWS = 16


def bits_of(rows: NDArray[np.float32], row_type: RowType) -> NDArray[Any]:
    """Rows as they cross into native code; every value here is exact in every row type."""
    if row_type is RowType.BFLOAT16:
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype(np.float16).view(np.uint16) if row_type is RowType.FLOAT16 else rows


def floats_of(rows: NDArray[Any], row_type: RowType) -> NDArray[np.float32]:
    """The inverse of `bits_of`."""
    if rows.dtype == np.float32:
        return rows
    if row_type is RowType.BFLOAT16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.view(np.float16).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """One rank's message; expert x answers a row with (x + 1) times the row."""

    hidden_SH: NDArray[np.float32]
    expert_ids_SK: NDArray[np.int32]
    weights_SK: NDArray[np.float32]

    @property
    def expected(self) -> NDArray[np.float32]:
        """What combine_recv must return."""
        return self.hidden_SH * ((self.expert_ids_SK + 1) * self.weights_SK).sum(axis=1, keepdims=True)


class World:
    """One instance inside this process."""

    def __init__(
        self,
        *,
        dp_groups: int = 1,
        tp: int = 1,
        moe_devices: int = 2,
        num_experts: int = 7,
        hidden: int = 20,
        row_type: RowType = RowType.FLOAT32,
        compute_type: RowType = RowType.FLOAT32,
        combine: Combine = Combine.REDUCED,
        placement: Placement | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.kind: Kind = kind or HostKind()
        self.instance = Instance(
            model=ModelSpec(num_layers=4, hidden=hidden, num_experts=num_experts, top_k=3),
            parallel=ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices),
            prefill=PrefillSpec(
                max_tokens=NUM_SLOTS * SLOT_ROWS * tp,
                solo_tokens=SLOT_ROWS * tp,
                inflection_tokens=1,
                row_type=row_type,
                combine=combine,
            ),
            placement=placement,
        )
        self.compute_type = compute_type
        self.layout: Layout = layout_of(self.instance)
        self.native_layout = _native.Layout(**dataclasses.asdict(self.layout))
        create = self.kind.create
        self.moe_buffers = [create(f"moe-{e}", self.layout.moe_bytes) for e in range(moe_devices)]
        self.attention_buffers = [
            [create(f"attention-{i}-{j}", self.layout.attention_bytes) for j in range(tp)] for i in range(dp_groups)
        ]
        self.dead: list[Any] = []  # what was killed closes nothing: its peers' mappings stay
        self.epochs = [EPOCH] * dp_groups
        self.ranks = [[self.open_rank(i, j) for j in range(tp)] for i in range(dp_groups)]
        self.devices = [self.open_device(e) for e in range(moe_devices)]

    def open_rank(self, i: int, j: int) -> Any:
        return self.kind.rank(
            self.instance,
            self.compute_type,
            layout=self.native_layout,
            buffer=self.attention_buffers[i][j],
            moe_buffers=self.moe_buffers,
            dp_group=i,
            tp_rank=j,
            epoch=self.epochs[i],
        )

    def open_device(self, e: int) -> Any:
        return self.kind.device(
            self.instance,
            self.compute_type,
            layout=self.native_layout,
            buffer=self.moe_buffers[e],
            attention_buffers=self.attention_buffers,
            moe_device=e,
            epochs=self.epochs,
        )

    def restart_device(self, e: int) -> None:
        """Device e is dead: another with a buffer of its own, and every rank hears of it."""
        self.dead += [self.moe_buffers[e], self.devices[e]]
        self.moe_buffers[e] = self.kind.create(f"moe-{e}", self.layout.moe_bytes)
        self.devices[e] = self.open_device(e)
        for rank in itertools.chain.from_iterable(self.ranks):
            rank.replace_device(e, self.kind.peer(self.moe_buffers[e]))
        self.kind.settle()

    def restart_group(self, i: int) -> None:
        """Group i is dead: another with an epoch of its own, of which every device hears first."""
        self.dead += [*self.attention_buffers[i], *self.ranks[i]]
        self.epochs[i] += 1
        self.attention_buffers[i] = self.kind.replace_group(self.devices, i, self.epochs[i], self.attention_buffers[i])
        self.ranks[i] = [self.open_rank(i, j) for j in range(self.layout.tp)]

    def tokens(self, num_tokens: int, seed: int = 0) -> Tokens:
        rng = np.random.default_rng(seed)
        layout = self.layout
        experts = np.argsort(rng.random((num_tokens, layout.num_experts)), axis=1)[:, : layout.top_k]
        return Tokens(
            hidden_SH=rng.integers(-1, 2, (num_tokens, layout.hidden)).astype(np.float32),
            expert_ids_SK=np.ascontiguousarray(experts, dtype=np.int32),
            weights_SK=rng.choice(np.float32([0.5, 1.0]), (num_tokens, layout.top_k)),
        )

    def send(
        self, tokens: Tokens, i: int = 0, j: int = 0, slot: int = 0, layer: int = 1, timeout_s: float = PATIENCE_S
    ) -> None:
        hidden_SH = bits_of(tokens.hidden_SH, self.compute_type)
        self.ranks[i][j].async_dispatch_send(slot, layer, hidden_SH, tokens.expert_ids_SK, tokens.weights_SK, timeout_s)
        self.kind.settle()

    def serve(self, e: int) -> Any:
        """Take one item, let the experts of device e work on it, send the results."""
        item = self.devices[e].async_dispatch_recv(PATIENCE_S)
        factors_R = np.repeat([x + 1 for x in self.instance.experts_of(e)], item.num_rows_E)
        rows_RH = floats_of(item.rows, self.compute_type)
        results_RH = (rows_RH * factors_R[:, None]).astype(np.float32)
        self.devices[e].async_combine_send(item, bits_of(results_RH, self.compute_type))
        self.kind.settle()
        return item

    def receive(
        self, num_tokens: int, i: int = 0, j: int = 0, slot: int = 0, timeout_s: float = PATIENCE_S
    ) -> NDArray[np.float32]:
        out_SH = bits_of(np.full((num_tokens, self.layout.hidden), 9, dtype=np.float32), self.compute_type)
        self.ranks[i][j].async_combine_recv(slot, out_SH, timeout_s)
        return floats_of(out_SH, self.compute_type)

    def header(self, e: int, i: int = 0, j: int = 0, slot: int = 0) -> NDArray[np.int32]:
        """A message's header: epoch 0:2, sequence 2:4, layer 4, num_rows 5, num_pairs 6, reply_offset 7; counts 16:."""
        layout = self.layout
        start = layout.moe_regions + (i * layout.tp + j) * layout.region_bytes
        start += layout.region_headers + slot * layout.header_bytes
        memory = self.kind.bytes_of(self.moe_buffers[e])
        return np.frombuffer(memory, dtype=np.int32, count=layout.header_bytes // 4, offset=start)


class Calling:
    """A call in a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(call())
        except BaseException as failure:
            self._failure.append(failure)

    def is_over(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        if self._failure:
            raise self._failure[0]
        return self._outcome[0]
