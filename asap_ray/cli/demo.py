"""asap-ray demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.cli.ray_token import ask_for_token
from asap_ray.config import ServeConfig, config_to
from asap_ray.spec import ParallelSpec


def demo(
    out: Annotated[Path, typer.Option(help="Directory of the model and the report.")] = Path("out/demo"),
    port: Annotated[int, typer.Option(help="Port to serve on meanwhile.")] = 8000,
) -> None:
    """Make a small MoE model, serve it on a local Ray, replay a real trace against it, and stop everything."""
    ask_for_token()
    from asap_ray.actors.app import build_app
    from asap_ray.actors.endpoints import http_endpoint
    from asap_ray.actors.replay_job import Job
    from asap_ray.actors.running import running
    from asap_ray.models.random_checkpoint import demo as demo_model
    from asap_ray.models.random_checkpoint import make_random_checkpoint
    from asap_ray.workload.shaping import Shaping

    console = Console(highlight=False, soft_wrap=True)
    model = (out / "model").resolve()
    if not (model / "config.json").exists():
        console.print(f"making a random-weight Qwen3-MoE model in {model}")
        make_random_checkpoint(model, **demo_model())
    config = ServeConfig(model=str(model), parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2), name="demo")
    job = Job(
        trace=None, shaping=Shaping(dequantise_s=3.0, duration_s=40.0, rate_factor=0.5, length_factor=0.04), out=out
    )
    console.print(f"starting a local Ray and {config.parallel.num_devices} devices: 2 attention groups, 2 MoE devices")
    with running(config, build_app(config_to(config)), "127.0.0.1", port) as url:
        console.print(f"ready: {url}; replaying {job.shaping.text()} of the bundled Mooncake trace")
        job.run(http_endpoint(url))
    console.print("stopped")
