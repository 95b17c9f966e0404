"""Stages that compute nothing and take as long as the cost model says."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Final

from asap_ray.backends.virtual.runtime import Signal, VirtualRuntime
from asap_ray.batch import Batch, Token
from asap_ray.cost.model import CostModel
from asap_ray.protocol import NOBODY, Finished, Routed

FIRST_TOKEN: Final = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """What travels instead of hidden states: one layer of a batch, as long as its tokens."""

    batch: Batch
    num_tokens: int

    def __len__(self) -> int:
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Pass:
    """A batch on its way through the layers."""

    attention_s: float
    routed: Routed


class VirtualAttention:
    """`AttentionStage` of one rank. The T ranks of a group wait for each other before each layer, as collectives do."""

    def __init__(self, runtime: VirtualRuntime, cost: CostModel, barrier: Barrier) -> None:
        self._runtime = runtime
        self._cost = cost
        self._barrier = barrier
        self.num_layers = cost.shape.num_layers

    async def start(self, batch: Batch) -> Pass:
        """See `AttentionStage`."""
        rows = Rows(batch, batch.num_tokens)
        return Pass(self._cost.attention_s(batch.requests), Routed(rows, None, None))

    async def attend(self, state: Pass, layer: int, expert_out: Any | None) -> Routed:  # noqa: ARG002
        """See `AttentionStage`."""
        if self._barrier.size > 1:
            await self._barrier.wait()
        await self._runtime.sleep(state.attention_s)
        return state.routed

    async def finish(self, state: Pass, expert_out: Any, unwanted: Set[str] = NOBODY) -> Finished:  # noqa: ARG002
        """See `AttentionStage`; a chunk that is not its prompt's last gives no token."""
        requests = state.routed.hidden_SH.batch.requests
        return Finished(
            tuple(
                Token(request_id=request.request_id, token_id=FIRST_TOKEN, finish_reason="length")
                for request in requests
                if not request.future_tokens
            ),
            None,
        )


class Barrier:
    """Lets streams go on once `size` of them have come."""

    def __init__(self, runtime: VirtualRuntime, size: int, what: str) -> None:
        self.size = size
        self._runtime = runtime
        self._here: Signal = runtime.signal(what)

    async def wait(self) -> None:
        """Wait for the others; the last one to come does not wait."""
        if len(self._here) + 1 == self.size:
            self._runtime.wake(self._here)
        else:
            await self._runtime.park(self._here)


class VirtualMoE:
    """`MoEStage` of one device, or of a pool of them as one."""

    def __init__(self, runtime: VirtualRuntime, cost: CostModel, load: Callable[[int], float], launch_s: float) -> None:
        """`load` is this device's by layer; `launch_s` is the host's part of each call, 0 with the super kernel."""
        self._runtime = runtime
        self._cost = cost
        self._load = load
        self._launch_s = launch_s

    async def super_kernel(self, layer: int, rows_RH: Any, num_rows_E: Any) -> Any:  # noqa: ARG002
        """See `MoEStage`."""
        await self._runtime.sleep(self._launch_s + self._cost.moe_s(len(rows_RH), self._load(layer)))
        return rows_RH
