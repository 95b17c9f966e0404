"""Expressions of PromQL over our metrics: each quantity is written once, for panels and for rules alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asap_ray.telemetry import devices, frontend
from asap_ray.telemetry.metric import Metric

SLO_S: Final = 5.0
"""The TTFT objective of the paper (5.1); a bound of a bucket of TTFT, so that the share within it is exact."""

RANK: Final = "app, dp_group, tp_rank"
DEVICE: Final = "app, moe_device"


@dataclass(frozen=True, slots=True)
class Promql:
    """Where expressions look, and over which window they take rates."""

    app: str  # a matcher of our own metrics, or nothing
    model: str  # of vLLM's
    window: str

    def series(self, metric: Metric, suffix: str = "", **where: str) -> str:
        """A selector; `where` are labels and their values."""
        chosen = self.model if metric.is_vllm and "model_name" in metric.labels else "" if metric.is_vllm else self.app
        matchers = [*filter(None, [chosen]), *(f'{label}="{value}"' for label, value in where.items())]
        return f"{metric.exported}{suffix}{{{', '.join(matchers)}}}"

    def rate(self, metric: Metric, by: str, suffix: str = "", **where: str) -> str:
        """Growth a second."""
        return f"sum by ({by}) (rate({self.series(metric, suffix, **where)}[{self.window}]))"

    def growth(self, metric: Metric, by: str, suffix: str = "", **where: str) -> str:
        """Growth over the whole window."""
        return f"sum by ({by}) (increase({self.series(metric, suffix, **where)}[{self.window}]))"

    def starts(self) -> str:
        """Of each instance but the first. No counter: every frontend would begin a new one."""
        return f"changes((max by (app) ({self.series(frontend.STARTED_AT)}))[{self.window}:10s])"

    def mean(self, metric: Metric, by: str) -> str:
        """Of a histogram."""
        return f"{self.rate(metric, by, '_sum')} / {self.rate(metric, by, '_count')}"

    def quantile(self, share: float, metric: Metric, by: str) -> str:
        """Of a histogram."""
        return f"histogram_quantile({share:g}, {self.rate(metric, f'le, {by}', '_bucket')})"

    def ratio(self, above: Metric, below: Metric, by: str) -> str:
        """How much of one counter comes on one of another."""
        return f"{self.rate(above, by)} / {self.rate(below, by)}"

    def imbalance(self, metric: Metric, over: str, by: str) -> str:
        """The fullest of `by` over their mean, within each of `over`; 1 is perfect balance."""
        rates = self.rate(metric, by)
        return f"max by ({over}) ({rates}) / avg by ({over}) ({rates})"

    def within_slo(self) -> str:
        """Share of first tokens within the objective."""
        in_time = self.rate(frontend.TTFT, "model_name", "_bucket", le=str(SLO_S))
        return f"{in_time} / {self.rate(frontend.TTFT, 'model_name', '_count')}"

    def prefix_hit_rate(self) -> str:
        """Share of prompt tokens that need no computing."""
        return self.ratio(frontend.PREFIX_HITS, frontend.PREFIX_QUERIES, "model_name")

    def attention_idle(self) -> str:
        """Share of its time in which a rank neither computes, sends nor waits for experts: it has no batch."""
        return f"clamp_min(1 - {self.rate(devices.ATTENTION_SECONDS, RANK)}, 0)"

    def attention_writing(self) -> str:
        """Share of its time in which a rank writes rows: dispatch without its back-pressure."""
        dispatch = self.rate(devices.ATTENTION_SECONDS, RANK, phase="dispatch")
        return f"{dispatch} - ({self.rate(devices.BACKPRESSURE, RANK)} or 0 * {dispatch})"

    def moe_duty(self) -> str:
        """Share of its time in which a MoE device computes."""
        return self.rate(devices.MOE_SECONDS, DEVICE, stream="compute", state="work")


PANEL: Final = Promql('app=~"$app"', 'model_name=~"$model"', "$__rate_interval")
"""What the variables at the top of a dashboard choose."""

RULE: Final = Promql("", "", "5m")
"""Everything, in the last five minutes."""
