"""The systems of an evaluation by name: what differs between them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asap_ray.backends.virtual.instance import VirtualSpec
from asap_ray.backends.virtual.lockstep import LockstepSpec
from asap_ray.backends.virtual.p2p import P2PInstance
from asap_ray.cost.hardware import Hardware, ascend_910c
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import Shape, deepseek_v32
from asap_ray.cost.skew import UNIFORM, Skew
from asap_ray.engine import attention, experts
from asap_ray.errors import ConfigError
from asap_ray.evaluation.simulate import Run, simulate
from asap_ray.evaluation.sync_systems import POLICIES, attention_work, synchronous
from asap_ray.laps import Recorders, no_recorders
from asap_ray.scheduler import policies
from asap_ray.scheduler.admission import Admission, pairs, refill, single
from asap_ray.scheduler.dual_batch import DualBatchScheduler
from asap_ray.scheduler.paper import Paper
from asap_ray.scheduler.policy import Policy
from asap_ray.scheduler.turns import Turns
from asap_ray.spec import ParallelSpec, PrefillSpec, paper
from asap_ray.workload.trace import TraceRequest

UNBOUNDED: Final = 1 << 62
"""A simulated queue refuses nothing: its length is what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every system of a comparison gets: a model, devices, limits, the skew of its experts."""

    shape: Shape
    hardware: Hardware
    parallel: ParallelSpec  # of the asynchronous systems; the others split the same devices their own way
    prefill: PrefillSpec
    skew: Skew = UNIFORM
    is_pooled: bool = True
    recorders: Recorders = no_recorders

    def spec(self) -> VirtualSpec:
        """The asynchronous instance."""
        return VirtualSpec(
            cost=CostModel(
                shape=self.shape, hardware=self.hardware, tp=self.parallel.tp, moe_devices=self.parallel.moe_devices
            ),
            parallel=self.parallel,
            prefill=self.prefill,
            is_pooled=self.is_pooled,
            load=self.skew.load(self.parallel.moe_devices),
            recorders=self.recorders,
        )

    def lockstep_spec(self) -> LockstepSpec:
        """A synchronous instance on the same devices, all of which hold experts."""
        num_devices = self.parallel.num_devices
        return LockstepSpec(
            cost=CostModel(shape=self.shape, hardware=self.hardware, tp=self.parallel.tp, moe_devices=num_devices),
            load=self.skew.load(num_devices),
            recorders=self.recorders,
        )


def paper_setup() -> Setup:
    """5.1: DeepSeek-V3.2 on 32 dies, D=4, T=4, E=16."""
    instance = paper()
    return Setup(shape=deepseek_v32(), hardware=ascend_910c(), parallel=instance.parallel, prefill=instance.prefill)


def paper_asap(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """The paper's own policy (3.3): first come first served, pairs that start together on an idle group."""
    return _run_paper(_paper_spec(setup), trace, pairs)


def paper_refill(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """The other reading of 3.3.2: a slot is refilled as soon as its batch is done."""
    return _run_paper(setup.spec(), trace, refill)


def no_dual(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """5.5.1: the paper's system with one batch in flight per group."""
    return _run_paper(_paper_spec(setup), trace, single)


def no_overlap(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """5.5.2: the paper's system with one stream on each MoE device."""
    loops = (attention.serve_pairs, experts.serve_sequential)
    return _run_paper(replace(_paper_spec(setup), loops=loops), trace, pairs)


def no_super_kernel(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """5.5.3: the paper's system whose host launches each MoE layer."""
    return _run_paper(replace(_paper_spec(setup), has_super_kernel=False), trace, pairs)


def p2p(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
    """5.4: this product over synchronous sends; every rank and device is simulated."""
    spec = replace(setup.spec(), is_pooled=False)
    return simulate(spec, _scheduler(spec, Turns(spec.prefill, attention_work(spec.cost))), trace, P2PInstance)


def _paper_spec(setup: Setup) -> VirtualSpec:
    return replace(setup.spec(), loops=(attention.serve_pairs, experts.serve))


def _run_paper(spec: VirtualSpec, trace: Sequence[TraceRequest], admission: Admission) -> Run:
    return run_policy(spec, Paper(spec.prefill, attention_work(spec.cost)), trace, admission)


def run_policy(spec: VirtualSpec, policy: Policy, trace: Sequence[TraceRequest], admission: Admission = refill) -> Run:
    """Run a trace on the asynchronous instance, with any policy."""
    return simulate(spec, _scheduler(spec, policy, admission), trace)


def _scheduler(spec: VirtualSpec, policy: Policy, admission: Admission = refill) -> DualBatchScheduler:
    return DualBatchScheduler(
        spec.prefill, spec.parallel.dp_groups, UNBOUNDED, UNBOUNDED, policy=policy, admission=admission
    )


def _under_policy(name: str) -> System:
    """The asynchronous instance under one of `scheduler.policies`; `asap` is this product as it ships."""

    def system(setup: Setup, trace: Sequence[TraceRequest]) -> Run:
        spec = setup.spec()
        return run_policy(spec, policies.policy_of(name, spec.prefill, attention_work(spec.cost)), trace)

    return system


def _synchronous(name: str) -> System:
    return lambda setup, trace: synchronous(name, setup.lockstep_spec(), trace)


System = Callable[[Setup, Sequence[TraceRequest]], Run]

SYSTEMS: Final[dict[str, System]] = {
    **{name: _under_policy(name) for name in policies.POLICIES},
    "paper": paper_asap,
    "paper_refill": paper_refill,
    "no_dual": no_dual,
    "no_overlap": no_overlap,
    "no_super_kernel": no_super_kernel,
    "p2p": p2p,
    **{name: _synchronous(name) for name in POLICIES},
}


def system_of(name: str) -> System:
    """A system by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}; known: {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
