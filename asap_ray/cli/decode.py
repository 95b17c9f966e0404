"""asap-ray decode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.cli.ray_token import ask_for_token
from asap_ray.cli.serve import read_config, refuse_both
from asap_ray.config import ServeConfig, config_to
from asap_ray.errors import ConfigError
from asap_ray.spec import ParallelSpec


def decode(
    context: typer.Context,
    model: Annotated[Path | None, typer.Option(help="Directory of the checkpoint that is prefilled elsewhere.")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="Name of the application.")] = "asap-decode",
    address: Annotated[str | None, typer.Option(help="Join this Ray cluster instead of starting one.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with every setting (docs/serving.md).")] = None,
) -> None:
    """Decode on an undivided model, with keys and values pulled from a prefill instance on this host."""
    if not address:
        ask_for_token()
    from asap_ray.actors.decode_app import build_decode_app
    from asap_ray.actors.running import running, wait_for_signal

    refuse_both(context, config, ("model", "name"))
    if config:
        decoded = read_config(config)
    elif model:
        alone = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
        decoded = ServeConfig(model=str(model.resolve()), parallel=alone, name=name)
    else:
        raise ConfigError("nothing to decode: give --model DIR, or --config FILE")

    console = Console(highlight=False, soft_wrap=True)
    with running(decoded, build_decode_app(config_to(decoded)), host, port, address) as url:
        console.print(f"ready: {url} decodes {decoded.model}")
        console.print(f"{wait_for_signal()}: stopping")
