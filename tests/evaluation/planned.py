"""What the planner's tests plan for: the paper's model, die and prompts."""

from __future__ import annotations

from asap_ray.evaluation.plan_candidates import Objective, PlannedCase, sample_lengths
from asap_ray.evaluation.slo import criterion_of

CASE = PlannedCase(
    model="deepseek-v3.2",
    hardware="ascend-910c",
    interconnect="supernode",
    dp=1,
    tp=1,
    ep=1,
    skew="uniform",
    trace="A",
    dequantise_s=0.0,
    weight_bytes=1,
)
MEAN = Objective(slo_s=5.0, criterion=criterion_of("mean"), lengths=sample_lengths(CASE)[:200])
