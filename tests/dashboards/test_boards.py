"""Dashboards and metrics belong together."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from asap_ray.dashboards.boards import OVERVIEW_UID, UNSHOWN, boards
from asap_ray.dashboards.grafana import FOLDER_UID, Board, Target
from asap_ray.telemetry import METRICS
from dashboards.build import HERE, files
from tests.dashboards.expressions import SERIES, grouped, labels, matched, metrics, names

BOARDS = boards()
TARGETS = [target for board in BOARDS for row in board.rows for panel in row.panels for target in panel.targets]

every_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.expr)


@pytest.mark.parametrize("path", files(), ids=str)
def test_what_is_committed_is_what_the_metrics_make(path: Path) -> None:
    """`python -m dashboards.build` writes it again."""
    assert (HERE / path).read_text() == files()[path]


def test_no_dashboard_is_left_over() -> None:
    """A file that nothing writes any more would still be provisioned."""
    assert {path.name for path in (HERE / "grafana").iterdir()} == {f"{board.uid}.json" for board in BOARDS}


@every_target
def test_an_expression_uses_what_is_exported(target: Target) -> None:
    """Every series in it is one of ours, and there is one."""
    assert names(target.expr) - set(SERIES) == set()
    assert names(target.expr) != set()


@every_target
def test_an_expression_uses_labels_that_exist(target: Target) -> None:
    """In matchers, of that very metric; in aggregations, of one of the metrics."""
    known = set().union(*map(labels, metrics(target.expr)))
    assert grouped(target.expr) - known == set()
    assert {(name, label) for name, label in matched(target.expr) if label not in labels(SERIES[name])} == set()


@every_target
def test_a_legend_names_labels_that_are_left(target: Target) -> None:
    """What an aggregation drops would be blank."""
    assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) - grouped(target.expr) == set()


def test_every_metric_is_shown_or_says_why_not() -> None:
    """Nothing is measured for nobody."""
    shown = {metric.name for target in TARGETS for metric in metrics(target.expr)}
    assert shown == set(METRICS) - set(UNSHOWN)


@every_board
def test_panels_do_not_overlap(board: Board) -> None:
    """Nor leave the 24 columns; and every id is its own."""
    panels: list[dict[str, Any]] = board.to_json()["panels"]
    places = [panel["gridPos"] for panel in panels]

    assert max(place["x"] + place["w"] for place in places) <= 24
    assert [pair for pair in combinations(places, 2) if overlap(*pair)] == []
    assert len({panel["id"] for panel in panels}) == len(panels)


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Whether two places on the grid share a cell."""
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def test_provisioned_dashboards_are_in_the_folder_that_push_makes() -> None:
    """Either way leads to the same place."""
    (provider,) = yaml.safe_load((HERE / "provisioning/dashboards/asap.yaml").read_text())["providers"]
    assert provider["folderUid"] == FOLDER_UID


def test_the_metrics_tab_of_ray_shows_the_overview() -> None:
    """`dashboards/ray_env.sh` sets what Ray reads; addresses are the caller's."""
    shown = "RAY_GRAFANA_DEFAULT_DASHBOARD_UID RAY_GRAFANA_HOST RAY_GRAFANA_IFRAME_HOST RAY_PROMETHEUS_NAME"
    script = f'. "{HERE}/ray_env.sh"; for name in {shown}; do printenv "$name"; done'
    environment = {"PATH": "/usr/bin:/bin", "GRAFANA": "http://grafana:3000"}
    printed = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout

    assert printed.split() == [OVERVIEW_UID, "http://grafana:3000", "http://grafana:3000", "Prometheus"]
