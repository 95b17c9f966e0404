"""Recording and alert rules: Prometheus takes them, and they fire when they should."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.rules import Alert, Recording, alerts, recordings
from asap_ray.telemetry.metric import Kind
from dashboards.build import HERE
from tests.dashboards.expressions import SERIES, grouped, labels, matched, metrics, names

MONITORING = HERE.parent / "docs/monitoring.md"
ALERT_TESTS = Path(__file__).with_name("alerts.test.yml")
LABEL_VALUES = {
    "le": ("0.1", "5.0", "+Inf"),
    "phase": ("compute", "dispatch", "combine"),
    "stream": ("receive", "compute", "send"),
    "state": ("work", "starved", "blocked"),
}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
every_rule = pytest.mark.parametrize("rule", [*recordings(), *alerts()], ids=lambda rule: rule.name)


@every_rule
def test_a_rule_uses_what_is_exported(rule: Recording | Alert) -> None:
    """Series and labels alike."""
    known = set().union(*map(labels, metrics(rule.expr)))

    assert names(rule.expr) - set(SERIES) == set()
    assert grouped(rule.expr) - known == set()
    assert {(name, label) for name, label in matched(rule.expr) if label not in labels(SERIES[name])} == set()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do(alert: Alert) -> None:
    """Its runbook is a heading of docs/monitoring.md."""
    assert f"### {alert.name}\n" in MONITORING.read_text()


def test_every_alert_is_made_to_fire_once() -> None:
    """In the file that the next test gives to promtool."""
    cases = [case for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == {alert.name for alert in alerts()}


@needs_promtool
def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    """`promtool check config` reads both; the file that Ray writes need not be there."""
    assert promtool("check", "rules", HERE / "prometheus/asap.rules.yml") == ""
    assert promtool("check", "config", HERE / "prometheus/prometheus.yml") == ""


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    """promtool's own unit tests, on made-up series."""
    assert promtool("test", "rules", ALERT_TESTS) == ""


@needs_promtool
def test_every_panel_has_something_to_show(tmp_path: Path) -> None:
    """Each expression has a number at least, once every metric has a series."""
    exprs = [
        expr.replace("$__rate_interval", "5m").replace("$app", ".*").replace("$model", ".*")
        for board in boards()
        for expr in board.exprs
    ]
    is_there = [
        {"expr": f"count(({expr}) >= 0) > bool 0", "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expr in exprs
    ]
    file = tmp_path / "panels.yml"
    test = {"interval": "1m", "input_series": list(made_up()), "promql_expr_test": is_there}
    file.write_text(yaml.safe_dump({"tests": [test]}))

    assert promtool("test", "rules", file) == ""


def made_up() -> Iterator[dict[str, str]]:
    """Series of every metric, in promtool's words."""
    for name, metric in SERIES.items():
        chosen = (*metric.labels, *(("le",) if name.endswith("_bucket") else ()))
        for values in product(*(LABEL_VALUES.get(label, ("x",)) for label in chosen)):
            inside = ", ".join(f'{label}="{value}"' for label, value in zip(chosen, values, strict=True))
            growth = "1x20" if metric.kind is Kind.GAUGE else "0+10x20"
            yield {"series": f"{name}{{{inside}}}", "values": growth}


def promtool(*arguments: str | Path) -> str:
    """What it says if it is not content."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
