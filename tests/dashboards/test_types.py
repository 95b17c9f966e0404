"""Dashboards have the types that Grafana publishes: `make check-dashboards` installs them and runs this."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asap_ray.dashboards.boards import boards

HERE = Path(__file__).with_name("grafana")
TYPESCRIPT = HERE / "node_modules/typescript/bin/tsc"

pytestmark = pytest.mark.skipif(not TYPESCRIPT.exists(), reason="no @grafana/schema: make check-dashboards installs it")


def complaints(folder: Path, dashboards: list[dict[str, Any]]) -> str:
    """What tsc says of dashboards as values of Grafana's type."""
    lines = [f"export const board{n}: OurDashboard = {json.dumps(each)};" for n, each in enumerate(dashboards)]
    (folder / "boards.ts").write_text("\n".join(['import type { OurDashboard } from "./types";', *lines]))
    for name in ("types.ts", "node_modules"):
        (folder / name).symlink_to(HERE / name)
    options = json.loads((HERE / "tsconfig.json").read_text())
    (folder / "tsconfig.json").write_text(json.dumps(options))
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["node", TYPESCRIPT, "--preserveSymlinks", "--project", folder],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_our_dashboards_have_grafanas_types(tmp_path: Path) -> None:
    """Options and fields of every panel included, by its type."""
    assert complaints(tmp_path, [board.to_json() for board in boards()]) == ""


def _legend(panel: dict[str, Any]) -> None:
    panel["options"]["legend"]["displayMode"] = "lst"


def _custom(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["custom"]["linewidth"] = 1


def _height(panel: dict[str, Any]) -> None:
    panel["gridPos"]["h"] = "tall"


def _unit(panel: dict[str, Any]) -> None:
    panel["fieldConfig"]["defaults"]["unit"] = 7


@pytest.mark.parametrize(
    ("spoil", "word"), [(_legend, '"lst"'), (_custom, "'\"linewidth\"'"), (_height, "number"), (_unit, "string")]
)
def test_a_mistake_in_a_panel_is_found(tmp_path: Path, spoil: Callable[[dict[str, Any]], None], word: str) -> None:
    """Wrong values, unknown keys and wrong types, however deep."""
    dashboard = boards()[0].to_json()
    spoil(next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries"))

    assert word in complaints(tmp_path, [dashboard])
