"""asap-ray timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.cli.key_option import ApiKeyFile, key_source
from asap_ray.errors import ConfigError


def timeline(
    url: Annotated[str, typer.Option(help="A served instance.")] = "http://127.0.0.1:8000",
    last: Annotated[str, typer.Option(help="How far back, in seconds: 10s or 10.")] = "10s",
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace; ui.perfetto.dev opens it.")] = Path("trace.json"),
    api_key_file: ApiKeyFile = None,
) -> None:
    """Write what every stream of a running instance did in the last seconds."""
    import asyncio

    from asap_ray.actors.api_key import read_key
    from asap_ray.actors.timeline import timeline_of
    from asap_ray.evaluation.replay_report import check_writable
    from asap_ray.telemetry.trace_events import seconds_covered, write_trace

    last_s = _seconds(last)
    check_writable(out)
    source = key_source(api_key_file)
    recorded = asyncio.run(timeline_of(url, last_s, read_key(source) if source else ""))
    write_trace(out, recorded)
    Console(highlight=False, soft_wrap=True).print(f"{seconds_covered(recorded):.1f} s of {url}: {out}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--last {text!r} must be a positive number of seconds, such as 10s")
    return seconds
