"""A model in whole numbers: attention adds what the experts made, and every sum is looked at."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from asap_ray.batch import Batch, Token
from asap_ray.protocol import NOBODY, Finished, Routed
from asap_ray.spec import ParallelSpec
from tests.faults.comm import Rows
from tests.faults.runtime import ShakenRuntime

NUM_LAYERS, NUM_EXPERTS, TOP_K = 3, 5, 2
MODULUS = 1_000_003


def experts_of(layer: int, value: int) -> list[tuple[int, int]]:
    """The router: distinct experts of a value in a layer, each with its weight."""
    first = (value * 7 + layer) % NUM_EXPERTS
    return [((first + k) % NUM_EXPERTS, 1 + (value + k) % 3) for k in range(TOP_K)]


def expert(x: int, layer: int, value: int) -> int:
    """What expert x makes of a row."""
    return (value * (x + 2) + layer) % MODULUS


def device_of(x: int, num_devices: int) -> int:
    """Who has expert x."""
    return x * num_devices // NUM_EXPERTS


def next_value(layer: int, value: int) -> int:
    """One layer of the undivided model."""
    return (value + sum(weight * expert(x, layer, value) for x, weight in experts_of(layer, value))) % MODULUS


@dataclass(slots=True)
class Pass:
    """A batch on one rank: the values of its share of the tokens, as they are and as they must be."""

    batch: Batch
    values: list[int]


class Barrier:
    """The collectives of one incarnation of a group."""

    def __init__(self, runtime: ShakenRuntime, size: int) -> None:
        self._runtime = runtime
        self._size = size
        self._here = self._round = 0

    async def wait(self) -> None:
        """Until all ranks are here."""
        self._here += 1
        round_ = self._round
        if self._here == self._size:
            self._here, self._round = 0, self._round + 1
            self._runtime.ring()
        while self._round == round_:
            await self._runtime.until_rung(self._runtime.rings)


@dataclass
class Attention:
    """`AttentionStage` of rank j."""

    runtime: ShakenRuntime
    parallel: ParallelSpec
    barrier: Barrier
    tp_rank: int
    num_layers: int = NUM_LAYERS

    async def start(self, batch: Batch) -> Pass:
        """See `AttentionStage`: every T-th token is this rank's."""
        numbers = [int(request.request_id) * 100 + n for request in batch.requests for n in range(request.num_tokens)]
        return Pass(batch, numbers[self.tp_rank :: self.parallel.tp])

    async def attend(self, state: Pass, layer: int, expert_out: dict[int, Rows] | None) -> Routed:
        """See `AttentionStage`."""
        await self.barrier.wait()
        await self.runtime.pause()
        if expert_out is not None:
            self._add(state, layer - 1, expert_out)
        rows: dict[int, Rows] = {e: {} for e in range(self.parallel.moe_devices)}
        for n, value in enumerate(state.values):
            for x, weight in experts_of(layer, value):
                rows[device_of(x, self.parallel.moe_devices)].setdefault(n, []).append((x, weight, value))
        return Routed(rows, None, None)

    async def finish(self, state: Pass, expert_out: dict[int, Rows], unwanted: Set[str] = NOBODY) -> Finished:  # noqa: ARG002
        """See `AttentionStage`."""
        self._add(state, NUM_LAYERS - 1, expert_out)
        await self.barrier.wait()
        requests = state.batch.requests
        return Finished(
            tuple(Token(request_id=each.request_id, token_id=0, finish_reason="stop") for each in requests), None
        )

    def _add(self, state: Pass, layer: int, results: dict[int, Rows]) -> None:
        """The sum over experts, which must be the undivided model's."""
        for n, value in enumerate(state.values):
            total = value + sum(rows.get(n, 0) for rows in results.values())
            assert total % MODULUS == next_value(layer, value), f"layer {layer}: a wrong sum of token {n}"
            state.values[n] = total % MODULUS


@dataclass
class Experts:
    """`MoEStage`: one weighted sum a row."""

    runtime: ShakenRuntime

    async def super_kernel(self, layer: int, rows_RH: list[Rows], num_rows_E: Any) -> list[Rows]:  # noqa: ARG002
        """See `MoEStage`."""
        await self.runtime.pause()
        return [
            {n: sum(weight * expert(x, layer, value) for x, weight, value in row) for n, row in rows.items()}
            for rows in rows_RH
        ]
