"""What a split of the devices can carry, by closed forms: a bound of each resource, and an estimate to rank by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from asap_ray.cost.model import CostModel
from asap_ray.evaluation.bound import bound_of
from asap_ray.evaluation.slo import Criterion
from asap_ray.evaluation.systems import Setup
from asap_ray.spec import NUM_SLOTS

Bounds = tuple[tuple[str, float], ...]
"""Resources with the requests a second that each would carry, the scarcest first."""

HALVINGS: Final = 30
"""Of the range in which a rate is sought."""

MAX_PERCENTILE: Final = 0.999
"""The wait of the last one of all has no bound; this one's stands for it."""


def disaggregated_bounds(setup: Setup, lengths: Sequence[int]) -> Bounds:
    """Of the asynchronous instance: attention groups, MoE devices, links, and the way there and back.

    A group has `NUM_SLOTS` batches in flight; none ends a layer before its rows went to the MoE devices and came
    back. The bound lets every batch be as long as two may be side by side.
    """
    bound = bound_of(setup, lengths)
    return _sorted(
        {
            "attention": bound.attention_rps,
            "MoE": bound.moe_rps,
            "link": bound.link_rps,
            "round trip": _round_trip_rps(setup, lengths),
        }
    )


def collocated_bounds(setup: Setup, lengths: Sequence[int]) -> Bounds:
    """Of a synchronous system on the same devices, groups of T: perfectly balanced steps, other transfers hidden.

    Attention, writing its rows unless a NIC does, and experts share each device, so their times add.
    """
    cost = collocated_cost(setup)
    num_devices, num_groups = cost.moe_devices, cost.moe_devices // cost.tp
    num_tokens, per_layer = sum(lengths), len(lengths) / setup.shape.num_layers
    launch_s = setup.hardware.link.launch_s
    write_s = 0.0 if setup.hardware.link.is_offloaded else cost.dispatch_s(num_tokens) - launch_s
    group_s = (_attention_s(cost, lengths) + write_s) / num_groups
    device_s = group_s + cost.moe_s(num_tokens, setup.skew.slowest(num_devices))
    return _sorted(
        {
            "devices": per_layer / device_s,
            "link": per_layer * num_groups / (cost.combine_s(num_tokens) - launch_s),
        }
    )


def collocated_cost(setup: Setup) -> CostModel:
    """The costs of a synchronous system on the same devices: all of them have experts."""
    return CostModel(
        shape=setup.shape, hardware=setup.hardware, tp=setup.parallel.tp, moe_devices=setup.parallel.num_devices
    )


def alone_s(cost: CostModel, overhead_s: float, num_tokens: int) -> float:
    """TTFT of a prompt that has the instance to itself."""
    there_s = cost.dispatch_s(num_tokens) + cost.dispatch_recv_s(num_tokens)
    back_s = max(cost.combine_s(num_tokens), cost.combine_send_s(num_tokens))
    attention_s = cost.hardware.attention_launch_s + _attention_s(cost, [num_tokens])
    layer_s = attention_s + there_s + cost.moe_s(num_tokens) + back_s + 2 * cost.hardware.link.latency_s
    return cost.shape.num_layers * layer_s + overhead_s


def estimate_rps(bounds: Bounds, alone: Sequence[float], criterion: Criterion, slo_s: float) -> float:
    """The rate at which TTFT reaches the objective if every resource were one server in a row (Kingman's formula).

    Ranks splits for simulation, nothing else. `alone` are the TTFTs of a sample of prompts without others; services
    are taken to vary as much. A percentile of the wait is that of an exponential distribution with its mean.
    """
    mean_s = statistics.fmean(alone)
    if criterion.percentile is None:
        least_s, wait_factor = mean_s, 1.0
    else:
        share = min(criterion.percentile / 100, MAX_PERCENTILE)
        least_s, wait_factor = sorted(alone)[int(share * (len(alone) - 1))], -math.log(1 - share)
    spread = (1 + statistics.pvariance(alone, mean_s) / mean_s**2) / 2

    def ttft_s(rps: float) -> float:
        return least_s + wait_factor * spread * sum(rps / bound / (bound - rps) for _, bound in bounds)

    low_rps, high_rps = 0.0, bounds[0][1]
    for _ in range(HALVINGS):
        middle_rps = (low_rps + high_rps) / 2
        low_rps, high_rps = (middle_rps, high_rps) if ttft_s(middle_rps) <= slo_s else (low_rps, middle_rps)
    return low_rps


def _round_trip_rps(setup: Setup, lengths: Sequence[int]) -> float:
    cost, link = setup.spec().cost, setup.hardware.link
    num_tokens = sum(lengths)
    num_batches = num_tokens / setup.prefill.solo_tokens
    transfers_s = (
        cost.dispatch_s(num_tokens)
        + cost.dispatch_recv_s(num_tokens)
        + max(cost.combine_s(num_tokens), cost.combine_send_s(num_tokens))
        - 3 * link.launch_s
    )
    once_a_batch_s = setup.hardware.attention_launch_s + 3 * link.launch_s + 2 * link.latency_s
    moe_s = cost.moe_s(num_tokens, setup.skew.busiest(setup.parallel.moe_devices))
    layer_s = _attention_s(cost, lengths) + moe_s + transfers_s + num_batches * once_a_batch_s
    return NUM_SLOTS * setup.parallel.dp_groups * len(lengths) / setup.shape.num_layers / layer_s


def _attention_s(cost: CostModel, lengths: Sequence[int]) -> float:
    """A layer of all prompts on one group, without launches."""
    return cost.token_s * sum(lengths) + cost.pair_s * sum(length**2 for length in lengths)


def _sorted(bounds: dict[str, float]) -> Bounds:
    return tuple(sorted(bounds.items(), key=lambda bound: bound[1]))
