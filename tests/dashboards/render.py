"""Pages of our dashboards drawn by Grafana's own panels (`@grafana/ui`), as pictures.

    python -m tests.dashboards.render OUT [PROMETHEUS_URL]

`make render-dashboards` installs what it needs. Without the address of a Prometheus the series are made up.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from asap_ray.dashboards.boards import boards
from asap_ray.dashboards.grafana import Board

HERE: Final = Path(__file__).with_name("render")
CHROMIUM: Final = "chromium"
NUM_POINTS: Final = 120
STEP_S: Final = 15
START_S: Final = 1_700_000_000
WIDTH: Final = 24 * 64
ROW: Final = 36

Query = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""The series of one target: name, times in ms, values."""


def made_up(target: dict[str, Any]) -> list[dict[str, Any]]:
    """Three waves, named as the legend says with 0, 1 and 2 for its labels; one where it has none."""
    legend = target["legendFormat"].replace("__auto", "value")
    times = [1000 * (START_S + STEP_S * n) for n in range(NUM_POINTS)]
    return [
        {
            "name": re.sub(r"\{\{\w+\}\}", str(index), legend),
            "times": times,
            "values": [0.4 + 0.1 * index + 0.3 * math.sin(n / 9 + index) for n in range(NUM_POINTS)],
        }
        for index in range(3 if "{{" in legend else 1)
    ]


def asked(prometheus: httpx.Client) -> Query:
    """The last half hour of a Prometheus."""
    now_s = float(prometheus.get("/api/v1/query", params={"query": "time()"}).json()["data"]["result"][0])
    window = {"start": now_s - STEP_S * NUM_POINTS, "end": now_s, "step": STEP_S}

    def query(target: dict[str, Any]) -> list[dict[str, Any]]:
        expr = target["expr"].replace("$__rate_interval", "1m").replace("$app", ".*").replace("$model", ".*")
        reply = prometheus.get("/api/v1/query_range", params={"query": expr, **window}).json()
        return [
            {
                "name": _legend(target["legendFormat"], series["metric"]),
                "times": [1000 * at_s for at_s, _ in series["values"]],
                "values": [None if value == "NaN" else float(value) for _, value in series["values"]],
            }
            for series in reply["data"]["result"]
        ]

    return query


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)


def bundle(folder: Path) -> Path:
    """The page's program and style, in `folder`."""
    program = folder / "page.js"
    esbuild = HERE / "node_modules/@esbuild/linux-x64/bin/esbuild"
    options = ["--bundle", "--minify", "--jsx=automatic", "--loader:.ttf=dataurl", "--log-level=error"]
    environment = {"PATH": os.environ["PATH"]}
    define = '--define:process.env.NODE_ENV="production"'
    subprocess.run(
        [esbuild, "page.tsx", f"--outfile={program}", define, *options], cwd=HERE, env=environment, check=True
    )
    return program


def page(board: Board, query: Query, program: Path) -> Path:
    """A page of the board beside its program."""
    content = board.to_json()
    for panel in content["panels"]:
        panel["series"] = [series for target in panel.get("targets", []) for series in query(target)]
    times = [at for panel in content["panels"] for series in panel["series"] for at in series["times"]]
    shown = {
        "title": board.title,
        "panels": content["panels"],
        "from": min(times, default=0),
        "to": max(times, default=1),
    }
    html = program.with_name(f"{board.uid}.html")
    html.write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="{program.stem}.css">'
        f'<body style="font-family: sans-serif; font-size: 14px; margin: 0"><div id="root"></div>'
        f"<script>const DASHBOARD = {json.dumps(shown).replace('<', chr(92) + 'u003c')};</script>"
        f'<script src="{program.name}"></script>'
    )
    return html


def height(board: Board) -> int:
    """Of its page, in pixels."""
    places = [panel["gridPos"] for panel in board.to_json()["panels"]]
    return ROW * (1 + max(place["y"] + place["h"] for place in places))


def chromium(html: Path, size: tuple[int, int], *what: str) -> str:
    """Let the page run until it stands still; what Chromium prints."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    window = f"--window-size={size[0]},{size[1]}"
    command = [CHROMIUM, *flags, window, *what, html.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def main() -> None:
    """A picture of every board."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    query = asked(httpx.Client(base_url=sys.argv[2], timeout=30.0)) if len(sys.argv) > 2 else made_up
    program = bundle(out)
    for board in boards():
        picture = out / f"{board.uid}.png"
        chromium(page(board, query, program), (WIDTH, height(board)), f"--screenshot={picture}")
        sys.stdout.write(f"{picture}\n")


if __name__ == "__main__":
    main()
