"""Every way to use so many devices: attention degrees, MoE devices, limits of a batch, with or without barriers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from asap_ray.cost.memory import Need, collocated, disaggregated, instance_of
from asap_ray.cost.shapes import shape_of
from asap_ray.errors import ConfigError
from asap_ray.evaluation.plan_bounds import (
    Bounds,
    alone_s,
    collocated_bounds,
    collocated_cost,
    disaggregated_bounds,
    estimate_rps,
)
from asap_ray.evaluation.points import Case
from asap_ray.evaluation.slo import Criterion
from asap_ray.evaluation.systems import Setup
from asap_ray.spec import ParallelSpec
from asap_ray.workload.lengths import PRESETS

ASYNC: Final = "asap"
SYNC: Final = "strong"
"""The best synchronous system we know (docs/baselines.md)."""

TENSOR_DEGREES: Final = (1, 2, 4, 8)

SAMPLE: Final = 4000
"""Prompts that the closed forms see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase(Case):
    """A case whose weights and limits of a batch are chosen; None: as the case itself has them."""

    weight_bytes: int
    inflection_tokens: int | None = None
    solo_tokens: int | None = None

    def setup(self) -> Setup:
        """See `Case`."""
        setup = Case.setup(self)
        limits = setup.prefill
        return replace(
            setup,
            shape=replace(setup.shape, weight_bytes=self.weight_bytes),
            prefill=replace(
                limits,
                inflection_tokens=self.inflection_tokens or limits.inflection_tokens,
                solo_tokens=self.solo_tokens or limits.solo_tokens,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is to be held: a TTFT, by a criterion, for prompts of these lengths."""

    slo_s: float
    criterion: Criterion
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way, whether it fits, and what it could carry."""

    system: str
    case: PlannedCase
    needs: tuple[Need, ...]  # of each kind of device
    bounds: Bounds
    estimate_rps: float  # within the objective

    @property
    def fits(self) -> bool:
        """Whether every device has the memory it needs."""
        return self.fullest.fits

    @property
    def fullest(self) -> Need:
        """The device nearest to its memory, or furthest beyond."""
        return max(self.needs, key=lambda need: need.share)

    @property
    def bound_rps(self) -> float:
        """Requests a second that no schedule exceeds."""
        return self.bounds[0][1]

    @property
    def degrees(self) -> ParallelSpec:
        """D, T, E; where every device has experts, E is all of them."""
        parallel = ParallelSpec(dp_groups=self.case.dp, tp=self.case.tp, moe_devices=self.case.ep)
        return everywhere(parallel) if self.system == SYNC else parallel

    def text(self) -> str:
        """Its system and degrees."""
        degrees = self.degrees
        return f"{self.system} D={degrees.dp_groups} T={degrees.tp} E={degrees.moe_devices}"


def sample_lengths(case: Case) -> tuple[int, ...]:
    """Prompt lengths of the case's trace, at most `SAMPLE` of them, evenly taken.

    Raises:
        ConfigError: the trace cannot be read.
    """
    if case.trace in PRESETS:
        return tuple(PRESETS[case.trace].draw(SAMPLE, seed=0))
    lengths = [request.input_length for request in case.recording()]
    return tuple(lengths[:: -(-len(lengths) // SAMPLE)])


def everywhere(parallel: ParallelSpec) -> ParallelSpec:
    """The same devices, each of them for attention and experts."""
    num_devices = parallel.num_devices
    return replace(parallel, dp_groups=num_devices // parallel.tp, moe_devices=num_devices)


def candidates(case: PlannedCase, num_devices: int, objective: Objective) -> list[Candidate]:
    """All splits of the devices, the most promising first; `case` gives everything but the degrees.

    Raises:
        ConfigError: there is no split at all.
    """
    splits = [*_disaggregated(case, num_devices), *_collocated(case, num_devices)]
    if not splits:
        raise ConfigError(f"devices={num_devices}: an instance needs at least an attention rank and a MoE device")
    return sorted(
        (candidate_of(system, split, objective) for system, split in splits),
        key=lambda candidate: (-candidate.estimate_rps, -candidate.bound_rps),
    )


def candidate_of(system: str, case: PlannedCase, objective: Objective) -> Candidate:
    """A split with its memory, its bounds and its estimate."""
    setup, lengths = case.setup(), objective.lengths
    if system == SYNC:
        instance = instance_of(setup.shape, everywhere(setup.parallel), setup.prefill)
        needs: tuple[Need, ...] = (collocated(setup.shape, setup.hardware, instance),)
        bounds, cost = collocated_bounds(setup, lengths), collocated_cost(setup)
        overhead_s = setup.hardware.step_request_overhead_s + setup.hardware.step_overhead_s
    else:
        instance = instance_of(setup.shape, setup.parallel, setup.prefill)
        needs = disaggregated(setup.shape, setup.hardware, instance)
        bounds, cost = disaggregated_bounds(setup, lengths), setup.spec().cost
        overhead_s = setup.hardware.request_overhead_s
    alone = [alone_s(cost, overhead_s, length) for length in lengths]
    return Candidate(
        system=system,
        case=case,
        needs=needs,
        bounds=bounds,
        estimate_rps=estimate_rps(bounds, alone, objective.criterion, objective.slo_s),
    )


def _disaggregated(case: PlannedCase, num_devices: int) -> Iterator[tuple[str, PlannedCase]]:
    num_experts = shape_of(case.model).num_experts
    for tp in TENSOR_DEGREES:
        for dp in range(1, (num_devices - 1) // tp + 1):
            ep = num_devices - dp * tp
            if ep <= num_experts:
                yield ASYNC, replace(case, dp=dp, tp=tp, ep=ep, skew=_placed(case.skew, num_experts, ep))


def _collocated(case: PlannedCase, num_devices: int) -> Iterator[tuple[str, PlannedCase]]:
    """With barriers only T is to choose. Systems take their own split of the devices of a case."""
    num_experts = shape_of(case.model).num_experts
    for tp in TENSOR_DEGREES:
        if num_devices % tp == 0 and tp < num_devices <= num_experts:
            skew = _placed(case.skew, num_experts, num_devices)
            yield SYNC, replace(case, dp=1, tp=tp, ep=num_devices - tp, skew=skew)


def _placed(skew: str, num_experts: int, moe_devices: int) -> str:
    """Even choice still loads devices unevenly where experts do not divide: `zipf:0` says so to the cost model."""
    return "zipf:0" if skew == "uniform" and num_experts % moe_devices else skew
