"""The rate that no schedule can exceed: every device of one kind always busy, no launch paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.evaluation.systems import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Requests a second of an asynchronous instance, by the resource that would be busy all the time."""

    attention_rps: float
    unbatched_rps: float  # of the attention groups if every prompt paid the launches of a batch of its own
    moe_rps: float
    link_rps: float

    @property
    def rps(self) -> float:
        """The resource bound."""
        return min(self.attention_rps, self.moe_rps, self.link_rps)

    @property
    def bottleneck(self) -> str:
        """Which resource it is."""
        names = {self.attention_rps: "attention groups", self.moe_rps: "MoE devices", self.link_rps: "links"}
        return names[self.rps]

    def text(self) -> str:
        """A line for a reader."""
        return (
            f"resource bound {self.rps:.1f} RPS, {self.bottleneck}: attention groups carry {self.attention_rps:.1f} "
            f"({self.unbatched_rps:.1f} with every prompt a batch of its own), MoE devices {self.moe_rps:.1f}, "
            f"links {self.link_rps:.1f}"
        )


def bound_of(setup: Setup, lengths: Sequence[int]) -> Bound:
    """The bound of prompts of these lengths, in these proportions."""
    spec = setup.spec()
    cost, num_layers, launch_s = spec.cost, setup.shape.num_layers, spec.cost.hardware.link.launch_s
    tokens = sum(lengths)
    attention_s = cost.token_s * tokens + cost.pair_s * sum(length**2 for length in lengths)
    if not cost.hardware.link.is_offloaded:
        attention_s += cost.dispatch_s(tokens) - launch_s
    launches_s = (cost.hardware.attention_launch_s + launch_s) * len(lengths)
    moe_s = cost.moe_s(tokens, setup.skew.busiest(setup.parallel.moe_devices))
    into_groups_s = (cost.combine_s(tokens) - launch_s) / setup.parallel.dp_groups
    out_of_experts_s = cost.combine_send_s(tokens) - launch_s
    per_layer = len(lengths) / num_layers
    return Bound(
        attention_rps=setup.parallel.dp_groups * per_layer / attention_s,
        unbatched_rps=setup.parallel.dp_groups * per_layer / (attention_s + launches_s),
        moe_rps=per_layer / moe_s,
        link_rps=per_layer / max(into_groups_s, out_of_experts_s),
    )
