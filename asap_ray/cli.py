"""The command line: asap-ray serve | replay | demo | layout | make-model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from asap_ray.config import ServeConfig, config_from, config_to
from asap_ray.errors import AsapError, ConfigError
from asap_ray.layout import areas, layout_of, table_2
from asap_ray.spec import Combine, Instance, ParallelSpec, paper

app = typer.Typer(
    help="Asynchronous, disaggregated prefill of Mixture-of-Experts models on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

Dp = Annotated[int, typer.Option("--dp", help="Attention DP groups, D.")]
Tp = Annotated[int, typer.Option("--tp", help="TP ranks of a group, T.")]
Ep = Annotated[int, typer.Option("--ep", help="MoE devices, E.")]


@app.command()
def serve(
    model: Annotated[Path | None, typer.Option(help="Directory of a Hugging Face checkpoint.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file; its keys are those of docs/serving.md.")] = None,
    dp: Dp = 2,
    tp: Tp = 1,
    ep: Ep = 2,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    name: Annotated[str, typer.Option(help="Name of the application and prefix of its actors.")] = "asap",
    device: Annotated[str, typer.Option(help="cpu.")] = "cpu",
    address: Annotated[str | None, typer.Option(help="Join this Ray cluster instead of starting one.")] = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM."""
    from asap_ray.actors.app import build_app
    from asap_ray.actors.running import running, wait_for_signal

    served = _serve_config(model, config, name, device, ParallelSpec(dp_groups=dp, tp=tp, moe_devices=ep))
    with running(served, build_app(config_to(served)), host, port, address) as url:
        degrees = served.parallel
        console.print(
            f"ready: {url} model={served.model} D={degrees.dp_groups} T={degrees.tp} E={degrees.moe_devices}",
            soft_wrap=True,
        )
        console.print(f"{wait_for_signal()}: stopping", soft_wrap=True)


@app.command()
def layout(
    dp: Dp = 4,
    tp: Tp = 4,
    ep: Ep = 16,
    max_tokens: Annotated[int | None, typer.Option(help="Longest batch, S.")] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint; default the paper's DeepSeek-V3.2.")] = None,
) -> None:
    """Print the bytes of the shared buffers for both combine modes, beside the paper's Table 2."""
    base = paper()
    prefill = base.prefill
    if max_tokens is not None:
        prefill = replace(
            prefill,
            max_tokens=max_tokens,
            solo_tokens=max_tokens // 2,
            inflection_tokens=min(prefill.inflection_tokens, max_tokens // 2),
        )
    instance = replace(
        base,
        model=_model_spec(model) if model else base.model,
        parallel=ParallelSpec(dp_groups=dp, tp=tp, moe_devices=ep),
        prefill=prefill,
    )
    console.print(_layout_table(instance))


def _layout_table(instance: Instance) -> Table:
    parallel = instance.parallel
    table = Table(title=f"Bytes of one buffer at D={parallel.dp_groups} T={parallel.tp} E={parallel.moe_devices}")
    for column in ("buffers", "device", "area"):
        table.add_column(column)
    table.add_column("bytes", justify="right")
    kinds = {mode: replace(instance, prefill=replace(instance.prefill, combine=mode)) for mode in Combine}
    listed = {f"combine={mode}": areas(layout_of(kind)) for mode, kind in kinds.items()}
    for title, rows in {"paper, Table 2": table_2(instance), **listed}.items():
        for area in rows:
            table.add_row(title, area.device, area.what, f"{area.num_bytes:,}")
        table.add_section()
    return table


def _model_spec(directory: Path) -> Any:
    from asap_ray.models.qwen3_moe import load_model

    return load_model(str(directory)).spec


def _serve_config(model: Path | None, file: Path | None, name: str, device: str, parallel: ParallelSpec) -> ServeConfig:
    if file is not None:
        try:
            return config_from(yaml.safe_load(file.read_text()))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from None
    if model is None:
        raise ConfigError("no model: give --model DIR, or --config FILE")
    return ServeConfig(model=str(model.resolve()), parallel=parallel, name=name, device=device)


def main() -> None:
    """Entry point: an expected error is one line on stderr and exit status 2."""
    try:
        app()
    except AsapError as error:
        Console(stderr=True).print(f"asap-ray: {error}", style="red", soft_wrap=True, markup=False)
        sys.exit(2)
