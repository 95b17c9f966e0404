"""What happens to requests: latency, prompts, batches."""

from __future__ import annotations

from asap_ray.dashboards.grafana import Panel, Row, Target, View, plot
from asap_ray.dashboards.promql import PANEL, SLO_S
from asap_ray.telemetry import frontend
from asap_ray.telemetry.metric import Metric


def latency() -> Row:
    """Times to first token, their parts, and the objective."""
    part, mean = frontend.TTFT_PART, PANEL.mean(frontend.TTFT_PART, "app, part")
    share = f"First tokens within {SLO_S:g} s of arrival."
    return Row(
        "Latency",
        (
            _heatmap("Time to first token", "s", frontend.TTFT),
            plot("Where it goes, mean", "s", mean, "{{app}} {{part}}", part.help, View.STACK),
            plot("Where it goes, p99", "s", PANEL.quantile(0.99, part, "app, part"), "{{app}} {{part}}", part.help),
            plot("Within objective", "percentunit", PANEL.within_slo(), "{{model_name}}", share),
            quantiles("Lateness", frontend.LATENESS, "app", width=8),
            quantiles("Queue", frontend.QUEUE_TIME, "model_name", width=8),
            quantiles("Prefill", frontend.PREFILL_TIME, "model_name", width=8),
            quantiles("Inference", frontend.INFERENCE_TIME, "model_name", width=12),
            quantiles("End to end", frontend.E2E, "model_name", width=12),
        ),
    )


def prompts() -> Row:
    """What is asked, and what becomes of it."""
    outcomes = (
        Target(PANEL.rate(frontend.REQUEST_SUCCESS, "finished_reason"), "{{finished_reason}}"),
        Target(PANEL.rate(frontend.REQUEST_ERRORS, "status"), "HTTP {{status}}"),
    )
    tokens = (
        Target(PANEL.rate(frontend.PROMPT_TOKENS, "model_name"), "prompt {{model_name}}"),
        Target(PANEL.rate(frontend.GENERATION_TOKENS, "model_name"), "generated {{model_name}}"),
    )
    prefixes = (
        Target(PANEL.rate(frontend.PREFIX_QUERIES, "model_name"), "looked up {{model_name}}"),
        Target(PANEL.rate(frontend.PREFIX_HITS, "model_name"), "found {{model_name}}"),
    )
    return Row(
        "Prompts",
        (
            Panel("Requests that end, a second", "reqps", outcomes, frontend.REQUEST_SUCCESS.help),
            Panel("Tokens a second", "short", tokens, "Prompt tokens prefilled, tokens generated."),
            _heatmap("Prompt lengths", "short", frontend.REQUEST_PROMPT_TOKENS),
            Panel("Prefix cache, tokens a second", "short", prefixes, frontend.PREFIX_HITS.help),
        ),
    )


def batches() -> Row:
    """How full batches and queues are."""
    requests = (
        Target(f"sum by (model_name) ({PANEL.series(frontend.RUNNING)})", "running {{model_name}}"),
        Target(f"sum by (model_name) ({PANEL.series(frontend.WAITING)})", "waiting {{model_name}}"),
    )
    return Row(
        "Batches",
        (
            _heatmap("Tokens of a batch", "short", frontend.BATCH_TOKENS),
            _heatmap("Fill against the inflection point", "none", frontend.BATCH_FILL),
            Panel("Requests", "none", requests, "In batches that groups hold, and in the queue."),
        ),
    )


def quantiles(title: str, metric: Metric, by: str, width: int) -> Panel:
    """Median, p90 and p99 of a latency."""
    targets = tuple(
        Target(PANEL.quantile(share, metric, by), f"p{100 * share:g} {{{{{by}}}}}") for share in (0.5, 0.9, 0.99)
    )
    return Panel(title, "s", targets, metric.help, width=width)


def _heatmap(title: str, unit: str, metric: Metric) -> Panel:
    """Of all that the variables choose."""
    return plot(title, unit, PANEL.rate(metric, "le", "_bucket"), "{{le}}", metric.help, View.HEATMAP)
