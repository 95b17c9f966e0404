"""Writes everything in dashboards/ that follows from the metrics: `python dashboards/build.py`.

A test fails while what is committed differs from what this writes.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.rules import to_yaml
from asap_ray.telemetry import METRICS
from asap_ray.telemetry.metric import Metric

HERE = Path(__file__).parent


def files() -> dict[Path, str]:
    """Every generated file, relative to this directory, and its text."""
    grafana = {Path("grafana", f"{board.uid}.json"): json.dumps(board.to_json(), indent=1) + "\n" for board in boards()}
    rules = "# Written by dashboards/build.py.\n" + yaml.safe_dump(to_yaml(), sort_keys=False, width=120)
    return grafana | {Path("prometheus", "asap.rules.yml"): rules, Path("METRICS.md"): _table()}


def _table() -> str:
    """Every metric, for people."""
    lines = [
        "# Metrics",
        "",
        "Written by dashboards/build.py from `asap_ray/telemetry/`. How they are exported: ../docs/monitoring.md.",
        "",
        "| exported as | kind | unit | labels | what | from |",
        "|---|---|---|---|---|---|",
        *map(_line, METRICS.values()),
    ]
    return "\n".join(lines) + "\n"


def _line(metric: Metric) -> str:
    cells = (f"`{metric.exported}`", metric.kind, metric.unit, ", ".join(metric.labels), metric.help, metric.measured)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for path, text in files().items():
        (HERE / path).write_text(text)
