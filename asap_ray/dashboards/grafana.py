"""Panels and dashboards, and the JSON that Grafana reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from asap_ray.telemetry import frontend
from asap_ray.telemetry.metric import Metric

TAG: Final = "asap-ray"
FOLDER_UID: Final = "asap-ray"

_SCHEMA_VERSION: Final = 39
_WIDTH: Final = 24
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class View(StrEnum):
    """How a panel shows its series."""

    LINES = "timeseries"
    STACK = "stack"
    NUMBER = "stat"
    HEATMAP = "heatmap"
    STATES = "state-timeline"


_HEIGHTS: Final = {View.NUMBER: 4}
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Target:
    """One expression, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `unit` is one of Grafana's."""

    title: str
    unit: str
    targets: tuple[Target, ...]
    description: str
    view: View = View.LINES
    width: int = 12

    @property
    def height(self) -> int:
        """In rows of the grid."""
        return _HEIGHTS.get(self.view, _HEIGHT)


def plot(
    title: str, unit: str, expr: str, legend: str, description: str, view: View = View.LINES, width: int = 12
) -> Panel:
    """A panel of one expression."""
    return Panel(title, unit, (Target(expr, legend),), description, view, width)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def exprs(self) -> list[str]:
        """Every expression on it."""
        return [target.expr for row in self.rows for panel in row.panels for target in panel.targets]

    def to_json(self) -> dict[str, Any]:
        """As Grafana exports and imports it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": _SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,  # one crosshair for all panels
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "timezone": "browser",
            "links": [_links()],
            "templating": {"list": _variables()},
            "annotations": {"list": []},
            "panels": list(_laid_out(self.rows)),
        }


def _laid_out(rows: tuple[Row, ...]) -> Iterator[dict[str, Any]]:
    """Headings and panels, left to right and top to bottom."""
    y = number = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _WIDTH:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries" if panel.view is View.STACK else panel.view.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(number, target, panel.view) for number, target in enumerate(panel.targets)],
    }


def _target(number: int, target: Target, view: View) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + number),
        "datasource": _DATASOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "legendFormat": target.legend or "__auto",
        "format": "heatmap" if view is View.HEATMAP else "time_series",
        "range": True,
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.view is View.LINES:
        return field | {"custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}}
    if panel.view is View.STACK:
        stacking = {"mode": "normal", "group": "A"}
        return field | {"custom": {"fillOpacity": 60, "lineWidth": 0, "showPoints": "never", "stacking": stacking}}
    if panel.view is View.STATES:
        shown = {"0": {"color": "red", "text": "lost"}, "1": {"color": "green", "text": "serving"}}
        return {"mappings": [{"type": "value", "options": shown}], "custom": {"fillOpacity": 70, "lineWidth": 0}}
    return field


def _options(panel: Panel) -> dict[str, Any]:
    if panel.view is View.NUMBER:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "none",
            "graphMode": "area",
            "textMode": "auto",
        }
    if panel.view is View.HEATMAP:
        color = {"mode": "scheme", "scheme": "Turbo", "steps": 64, "scale": "exponential", "exponent": 0.5}
        return {"calculate": False, "color": color, "yAxis": {"unit": panel.unit}, "legend": {"show": True}}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    if panel.view is View.STATES:
        return {"mergeValues": True, "showValue": "never", "legend": legend}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _links() -> dict[str, Any]:
    """From each of our dashboards to the others."""
    return {
        "type": "dashboards",
        "title": "asap-ray",
        "tags": [TAG],
        "icon": "dashboard",
        "tooltip": "",
        "targetBlank": False,
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _variables() -> list[dict[str, Any]]:
    """Ray's Metrics tab sets `datasource` by name."""
    datasource = {"name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus"}
    return [
        datasource,
        _label_values("app", "Instance", frontend.READY),
        _label_values("model", "Model", frontend.WAITING),
    ]


def _label_values(name: str, label: str, metric: Metric) -> dict[str, Any]:
    """The values of a metric's first label."""
    query = f"label_values({metric.exported}, {metric.labels[0]})"
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }
