"""Grafana's own code draws our panels in a browser: `make render-dashboards` installs it and keeps pictures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.grafana import Board
from tests.dashboards.render import CHROMIUM, HERE, WIDTH, bundle, chromium, height, made_up, page

DRAWN = ("timeseries", "stat")
"""Heatmaps and state timelines are in Grafana itself, not in @grafana/ui."""

pytestmark = [
    pytest.mark.skipif(not (HERE / "node_modules/@grafana/ui").exists(), reason="make render-dashboards installs it"),
    pytest.mark.skipif(
        shutil.which(CHROMIUM) is None, reason="chromium is not installed (Debian: apt install chromium)"
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's program."""
    return bundle(tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.uid)
def test_grafana_draws_every_panel_it_lends(board: Board, program: Path) -> None:
    """A canvas for lines with every series in the legend, a text for numbers, and no error anywhere."""
    dom = chromium(page(board, made_up, program), (WIDTH, height(board)), "--dump-dom")
    sections = re.findall(r'<section data-type="[\w-]+".*?</section>', dom, re.DOTALL)
    panels = board.to_json()["panels"]
    undrawn = [
        panel["title"]
        for panel, section in zip(panels, sections, strict=True)
        if panel["type"] in DRAWN and "<canvas" not in section
    ]
    without_legend = [
        (panel["title"], series["name"])
        for panel, section in zip(panels, sections, strict=True)
        if panel["type"] == "timeseries"
        for target in panel["targets"]
        for series in made_up(target)
        if f">{series['name']}<" not in section
    ]

    assert ('class="error"' in dom, undrawn, without_legend) == (False, [], [])
