"""Every metric, once: its name, kind, unit, labels, and where its number comes from.

Two ways out, told by the name. `vllm:*` are what vLLM exports too, on `GET /metrics` of the frontend, so that routers
and dashboards made for vLLM work unmodified. `asap_*` are what no peer exports, through `ray.util.metrics` from the
actors; Ray exports them as `ray_asap_*`, and drops names with a colon.
"""

from __future__ import annotations

from typing import Final

from asap_ray.telemetry import devices, frontend
from asap_ray.telemetry.metric import Metric

METRICS: Final = {
    metric.name: metric
    for module in (frontend, devices)
    for metric in vars(module).values()
    if isinstance(metric, Metric)
}
"""All of them by name, in the order of their definitions."""
