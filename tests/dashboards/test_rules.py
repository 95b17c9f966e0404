"""Recording and alert rules: Prometheus takes them, and they fire when they should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.rules import Alert, Recording, alerts, recordings
from dashboards.build import HERE
from tests.dashboards.expressions import SERIES, grouped, labels, matched, metrics, names

MONITORING = HERE.parent / "docs/monitoring.md"

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


@needs_promtool
def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    """`promtool check config` reads both; the file that Ray writes need not be there."""
    assert promtool("check", "rules", HERE / "prometheus/asap.rules.yml") == ""
    assert promtool("check", "config", HERE / "prometheus/prometheus.yml") == ""


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    """promtool's own unit tests, on made-up series."""
    assert promtool("test", "rules", Path(__file__).with_name("alerts.test.yml")) == ""


@needs_promtool
def test_prometheus_reads_every_panel(tmp_path: Path) -> None:
    """Each expression as a rule, with what Grafana puts in place of its variables."""
    exprs = [expr.replace("$__rate_interval", "1m") for board in boards() for expr in board.exprs]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    assert promtool("check", "rules", file) == ""


def promtool(*arguments: str | Path) -> str:
    """What it says if it is not content."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
