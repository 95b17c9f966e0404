"""asap-ray replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asap_ray.cli.key_option import ApiKeyFile, key_source
from asap_ray.errors import ConfigError


def replay(
    trace: Annotated[Path | None, typer.Option(help="Mooncake JSONL (.gz too) or Azure CSV; default: bundled.")] = None,
    url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000.")] = None,
    app: Annotated[str | None, typer.Option(help="A Serve application of a cluster, instead of --url.")] = None,
    address: Annotated[str, typer.Option(help="The cluster of --app.")] = "auto",
    start: Annotated[float, typer.Option(help="First second of the trace to replay.")] = 0.0,
    duration: Annotated[float, typer.Option(help="Seconds of the trace to replay.")] = float("inf"),
    rate: Annotated[float, typer.Option(help="Times the trace's request rate.")] = 1.0,
    poisson: Annotated[float | None, typer.Option(help="Poisson arrivals of so many requests a second.")] = None,
    length_scale: Annotated[float, typer.Option(help="Times the trace's prompt lengths.")] = 1.0,
    cap: Annotated[int | None, typer.Option(help="Cut longer prompts to this many tokens.")] = None,
    drop_longer: Annotated[int | None, typer.Option(help="Leave out prompts above this many tokens.")] = None,
    dequantise: Annotated[float | None, typer.Option(help="Spread clumped times over so many seconds.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=1)] = 1,
    vocab_size: Annotated[int | None, typer.Option(help="Of the model, where the server does not say.")] = None,
    seed: Annotated[int, typer.Option(help="Of prompts, arrivals and spreading.")] = 0,
    slo: Annotated[float, typer.Option(help="TTFT objective in seconds (5 in the paper).")] = 5.0,
    timeout: Annotated[float, typer.Option(help="Longest wait for one answer, seconds.")] = 600.0,
    timeline: Annotated[Path | None, typer.Option(help="Write a trace of its end for Perfetto here.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of replay.json and replay.html.")] = Path("replay"),
    api_key_file: ApiKeyFile = None,
) -> None:
    """Replay a trace open loop: every request goes out when the trace says so; write a table and a report."""
    from asap_ray.actors.api_key import read_key
    from asap_ray.actors.endpoints import app_endpoint, http_endpoint
    from asap_ray.actors.replay_job import Job
    from asap_ray.workload.shaping import Shaping

    if (url is None) == (app is None):
        raise ConfigError("give either --url or --app")
    job = Job(
        trace=trace,
        shaping=Shaping(
            dequantise_s=dequantise,
            start_s=start,
            duration_s=duration,
            rate_factor=rate,
            poisson_rate=poisson,
            length_factor=length_scale,
            cap_tokens=cap,
            drop_tokens=drop_longer,
            seed=seed,
        ),
        vocab_size=vocab_size,
        max_tokens=max_tokens,
        timeout_s=timeout,
        slo_s=slo,
        out=out,
        timeline=timeline,
    )
    source = key_source(api_key_file)
    key = read_key(source) if source else ""
    job.run(http_endpoint(url, key) if url else app_endpoint(str(app), address))
