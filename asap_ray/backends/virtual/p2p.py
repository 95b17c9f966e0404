"""Synchronous peer-to-peer sends in place of one-sided dispatch, in virtual time (5.4).

A rank sends to one MoE device after the other. Each send begins with a handshake that the receiver answers
between two computations, and holds both until the rows are there. Results come back one-sided, as ever: only
dispatch is compared.
"""

from __future__ import annotations

from types import TracebackType

from asap_ray.backends.virtual.comm import Buffers, VirtualAttentionComm
from asap_ray.backends.virtual.door import Deliver
from asap_ray.backends.virtual.instance import VirtualInstance, VirtualSpec
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.errors import ConfigError
from asap_ray.protocol import AttentionComm, MoEStage, Routed


class Turn:
    """What one device does at a time: compute, or receive from one sender."""

    def __init__(self, runtime: VirtualRuntime, what: str) -> None:
        self._runtime = runtime
        self._is_taken = False
        self._ended = runtime.signal(what)

    async def __aenter__(self) -> None:
        while self._is_taken:
            await self._runtime.park(self._ended)
        self._is_taken = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_taken = False
        self._runtime.wake(self._ended)


class P2PAttentionComm(VirtualAttentionComm):
    """`AttentionComm` of a rank whose sends are synchronous."""

    def __init__(self, buffers: Buffers, dp_group: int, tp_rank: int, turns: list[Turn]) -> None:
        super().__init__(buffers, dp_group, tp_rank)
        first = (dp_group * buffers.num_ranks + tp_rank) % len(turns)
        self._receivers = [(first + n) % len(turns) for n in range(len(turns))]  # ranks do not all start at one
        self._turns = turns

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """See `AttentionComm`; waits for every receiver in turn."""
        buffers, rows = self._buffers, routed.hidden_SH
        await self._room(slot)
        send_s = buffers.cost.p2p_dispatch_s(len(rows)) / len(self._receivers)
        for e in self._receivers:
            async with self._turns[e]:
                await buffers.runtime.sleep(send_s)
            self._set_bit(e, slot, layer, rows)


class P2PExperts:
    """`MoEStage` of a device that answers no sender while it computes."""

    def __init__(self, stage: MoEStage, turn: Turn) -> None:
        self._stage = stage
        self._turn = turn

    async def super_kernel(self, layer: int, rows_RH: object, num_rows_E: object) -> object:
        """See `MoEStage`."""
        async with self._turn:
            return await self._stage.super_kernel(layer, rows_RH, num_rows_E)


class P2PInstance(VirtualInstance):
    """The asynchronous instance over synchronous sends; every rank and device runs, none is pooled."""

    def __init__(self, runtime: VirtualRuntime, spec: VirtualSpec, deliver: Deliver) -> None:
        """Raises ConfigError: the specification is pooled, and a pool has nobody to send to in turn."""
        if spec.is_pooled:
            raise ConfigError("is_pooled=True: synchronous sends need every MoE device by itself; use is_pooled=False")
        devices = range(spec.parallel.moe_devices)
        self._turns = [Turn(runtime, f"MoE device {e} to compute or receive") for e in devices]
        super().__init__(runtime, spec, deliver)

    def _attention_comm(self, buffers: Buffers, dp_group: int, tp_rank: int) -> AttentionComm:
        return P2PAttentionComm(buffers, dp_group, tp_rank, self._turns)

    def _experts(self, spec: VirtualSpec, moe_device: int) -> MoEStage:
        return P2PExperts(super()._experts(spec, moe_device), self._turns[moe_device])
