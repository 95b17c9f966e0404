"""One prefill instance in virtual time: every loop of `engine/` over virtual buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from asap_ray.backends.virtual.comm import Buffers, Take, VirtualAttentionComm, VirtualMoEComm, round_robin
from asap_ray.backends.virtual.door import Deliver, VirtualDoor
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.backends.virtual.stages import Barrier, VirtualAttention, VirtualMoE
from asap_ray.cost.model import CostModel
from asap_ray.cost.skew import Load, balanced
from asap_ray.engine import attention, experts, instance
from asap_ray.laps import Laps, Recorder, Recorders, State, no_recorders
from asap_ray.protocol import AttentionComm, MoEStage
from asap_ray.spec import ParallelSpec, PrefillSpec
from asap_ray.tracks import Role, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSpec:
    """What runs, on what, how."""

    cost: CostModel
    parallel: ParallelSpec
    prefill: PrefillSpec
    is_pooled: bool = True  # a TP group and the MoE pool run as one rank and one device each
    loops: tuple[instance.AttentionLoop, instance.ExpertsLoop] = (attention.serve, experts.serve)
    take: Take = round_robin
    load: Load = balanced
    has_super_kernel: bool = True
    recorders: Recorders = no_recorders

    @property
    def simulated(self) -> ParallelSpec:
        """The ranks and devices that have a loop of their own."""
        return replace(self.parallel, tp=1, moe_devices=1) if self.is_pooled else self.parallel


class VirtualInstance:
    """D * T attention loops and E MoE loops, or a pooled one of each kind a group."""

    def __init__(self, runtime: VirtualRuntime, spec: VirtualSpec, deliver: Deliver) -> None:
        simulated = spec.simulated
        buffers = Buffers(runtime, spec.cost, simulated)
        groups = range(simulated.dp_groups)
        self._runtime = runtime
        self._loops = spec.loops
        self.doors = [VirtualDoor(runtime, spec.prefill, i, deliver) for i in groups]
        barriers = [Barrier(runtime, simulated.tp, f"the other ranks of group {i}") for i in groups]
        self.ranks = [
            attention.Rank(
                runtime,
                self._attention_comm(buffers, i, j),
                VirtualAttention(runtime, spec.cost, barriers[i]),
                self.doors[i].rank(j),
                Laps(runtime.now, State.IDLE, _recorder(spec, Role.ATTENTION, i, j)("attention")),
            )
            for i in groups
            for j in range(simulated.tp)
        ]
        self.devices = [
            experts.Device(
                runtime,
                VirtualMoEComm(buffers, e, spec.take),
                self._experts(spec, e),
                experts.Streams.of(runtime, _recorder(spec, Role.MOE, e)),
            )
            for e in range(simulated.moe_devices)
        ]

    def _attention_comm(self, buffers: Buffers, dp_group: int, tp_rank: int) -> AttentionComm:
        return VirtualAttentionComm(buffers, dp_group, tp_rank)

    def _experts(self, spec: VirtualSpec, moe_device: int) -> MoEStage:
        return VirtualMoE(self._runtime, spec.cost, _load_of(spec, moe_device), _launch_s(spec))

    async def serve(self) -> None:
        """Run every loop until the run ends."""
        await instance.serve(self._runtime, self.ranks, self.devices, self._loops)


def _recorder(spec: VirtualSpec, role: Role, index: int, tp_rank: int = 0) -> Recorder:
    return spec.recorders(Source(role=role, index=index, tp_rank=tp_rank))


def _load_of(spec: VirtualSpec, moe_device: int) -> Callable[[int], float]:
    """A device's load by layer; a pool is as slow as its slowest device."""
    devices = range(spec.parallel.moe_devices) if spec.is_pooled else range(moe_device, moe_device + 1)
    loads = [max(spec.load(e, layer) for e in devices) for layer in range(spec.cost.shape.num_layers)]
    return loads.__getitem__


def _launch_s(spec: VirtualSpec) -> float:
    return 0.0 if spec.has_super_kernel else spec.cost.hardware.moe_launch_s
