"""asap-ray serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml
from rich.console import Console

from asap_ray.cli.key_option import VARIABLE, ApiKeyFile, key_source
from asap_ray.cli.ray_token import ask_for_token
from asap_ray.config import ServeConfig, config_from, config_to
from asap_ray.errors import ConfigError
from asap_ray.placement import read_placement
from asap_ray.spec import ParallelSpec

_IN_CONFIG: Final = ("model", "dp", "tp", "ep", "name", "device", "api_key_file")
"""Options that a configuration file replaces."""

Dp = Annotated[int, typer.Option("--dp", help="Attention DP groups, D.")]
Tp = Annotated[int, typer.Option("--tp", help="TP ranks of a group, T.")]
Ep = Annotated[int, typer.Option("--ep", help="MoE devices, E.")]


def serve(
    context: typer.Context,
    model: Annotated[Path | None, typer.Option(help="Directory of a Hugging Face checkpoint.")] = None,
    dp: Dp = 2,
    tp: Tp = 1,
    ep: Ep = 2,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="Name of the application and prefix of its actors.")] = "asap",
    device: Annotated[str, typer.Option(help="Where to run: cpu, or npu (docs/ascend.md).")] = "cpu",
    address: Annotated[str | None, typer.Option(help="Join this Ray cluster instead of starting one.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with every setting (docs/serving.md).")] = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM."""
    if not address:
        ask_for_token()
    from asap_ray.actors.api_key import key_required
    from asap_ray.actors.app import build_app
    from asap_ray.actors.running import running, wait_for_signal
    from asap_ray.backends.ports import require_device

    refuse_both(context, config, _IN_CONFIG)
    if config:
        served = read_config(config)
    elif model:
        degrees = ParallelSpec(dp_groups=dp, tp=tp, moe_devices=ep)
        served = ServeConfig(model=str(model.resolve()), parallel=degrees, name=name, device=device)
    else:
        raise ConfigError("nothing to serve: give --model DIR, or --config FILE")

    if not address:  # else the devices are elsewhere, and say so themselves
        require_device(served)
    served = _with_key(served, api_key_file, address)
    if not address:  # elsewhere the frontend reads it
        key_required(served.api_key_from)
    console = Console(highlight=False, soft_wrap=True)
    with running(served, build_app(config_to(served)), host, port, address) as url:
        console.print(f"ready: {url} serves {served.model} with {served.parallel}")
        console.print(f"{wait_for_signal()}: stopping")


def refuse_both(context: typer.Context, config: Path | None, options: Sequence[str]) -> None:
    """An option that stands in a configuration file, and the file.

    Raises:
        ConfigError: names the first such option.
    """
    if config and (given := [name for name in options if _is_given(context, name)]):
        raise ConfigError(f"--{given[0]} and --config were both given; write it into {config}")


def _with_key(config: ServeConfig, file: Path | None, address: str | None) -> ServeConfig:
    """The configuration's own source of the API key, else the command line's."""
    if config.api_key_from:
        return config
    source = key_source(file)
    if address and source.startswith("env:"):
        raise ConfigError(f"{VARIABLE} of this shell does not reach the cluster at {address}; give --api-key-file")
    return dataclasses.replace(config, api_key_from=source)


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def read_config(file: Path) -> ServeConfig:
    """The settings of a YAML file; where its `placement` is a path from there, what stands in that file.

    Raises:
        ConfigError: the file cannot be read, or names the key that is wrong.
    """
    try:
        settings = yaml.safe_load(file.read_text())
        if isinstance(settings, dict) and isinstance(path := settings.get("placement"), str):
            settings["placement"] = dataclasses.asdict(read_placement(file.parent / path))
        return config_from(settings)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
