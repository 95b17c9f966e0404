"""What Ray Serve adds to a request: its own proxy, and its HAProxy with the settings for throughput.

    python benchmarks/http_path.py [--quick] [--json FILE]

Both serve the same toy instance at the same time, and requests go to them in turn, so that a busy machine hurts both
alike. JSON rows: {request, setting, p50_ms, p99_ms, ratio, spread}; `ratio` is the median of a round over that of the
default in the same round, `spread` the least and greatest of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
from peers.server import System, adopt_orphans, running

from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny

DEFAULT: Final = "default"
SETTINGS: Final[dict[str, dict[str, str]]] = {
    DEFAULT: {},
    "fast": {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
}
ONE_TOKEN: Final = {"max_tokens": 1, "temperature": 0}
REQUESTS: Final[dict[str, tuple[str, dict[str, Any] | None]]] = {
    "GET /health": ("/health", None),
    "a prompt of 3 ids": ("/v1/completions", ONE_TOKEN | {"prompt": [1, 2, 3]}),
    "a prompt of 2000 ids": ("/v1/completions", ONE_TOKEN | {"prompt": [7] * 2000}),
    "a refusal of 32k ids (200 kB)": ("/v1/completions", ONE_TOKEN | {"prompt": [77777] * 32768}),
}


def system(name: str, model: Path) -> System:
    """One group and one MoE device behind one way to them."""
    inherited = {key: os.environ[key] for key in ("HOME", "PATH", "LANG", "PYTHONPATH") if key in os.environ}
    fixed = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    options = ("--model", str(model), "--dp", "1", "--ep", "1")
    return System(
        name=name,
        command=(str(Path(sys.executable).parent / "asap-ray"), "serve", *options),
        environment=inherited | fixed | SETTINGS[name],
        ready_path="/ready",
    )


def seconds(client: httpx.Client, path: str, body: dict[str, Any] | None) -> float:
    """One request on a connection that is kept."""
    start_s = time.perf_counter()
    client.request("GET" if body is None else "POST", path, json=body)
    return time.perf_counter() - start_s


def measure(clients: dict[str, httpx.Client], rounds: int, each: int) -> list[dict[str, object]]:
    """Rows of all kinds of requests."""
    rows: list[dict[str, object]] = []
    for request, (path, body) in REQUESTS.items():
        taken: dict[str, list[list[float]]] = {name: [] for name in clients}
        for _ in range(rounds):
            for name, client in clients.items():
                taken[name].append([seconds(client, path, body) for _ in range(each)])
        for name, per_round in taken.items():
            whole = sorted(1e3 * one for some in per_round for one in some)
            ratios = [
                statistics.median(mine) / statistics.median(theirs)
                for mine, theirs in zip(per_round, taken[DEFAULT], strict=True)
            ]
            rows.append(
                {
                    "request": request,
                    "setting": name,
                    "p50_ms": statistics.median(whole),
                    "p99_ms": whole[int(0.99 * len(whole))],
                    "ratio": statistics.median(ratios),
                    "spread": [min(ratios), max(ratios)],
                }
            )
    return rows


def main() -> None:
    """Print a table; write rows where asked."""
    parser = argparse.ArgumentParser(description="Ray Serve's proxy and its HAProxy, side by side.")
    parser.add_argument("--quick", action="store_true", help="few requests; most of a minute is two starts")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = Path(folder) / "toy"
        make_random_checkpoint(model, **tiny())
        clients = {}
        for name in SETTINGS:
            url = stack.enter_context(running(system(name, model), Path(folder) / f"{name}.log"))
            clients[name] = stack.enter_context(httpx.Client(base_url=url, timeout=60.0, trust_env=False))
        rows = measure(clients, rounds=5 if arguments.quick else 11, each=20 if arguments.quick else 50)
    print(f"{'request':<32}{'setting':<10}{'p50 ms':>8}{'p99 ms':>8}{'ratio':>8}   spread")
    for row in rows:
        low, high = row["spread"]  # type: ignore[misc]
        numbers = "".join(f"{row[key]:>8.2f}" for key in ("p50_ms", "p99_ms", "ratio"))
        print(f"{row['request']:<32}{row['setting']:<10}{numbers}   {low:.2f} to {high:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
