"""asap-ray dashboards."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from asap_ray.errors import ConfigError

dashboards = typer.Typer(no_args_is_help=True)


@dashboards.callback()
def about() -> None:
    """Grafana dashboards of an instance (docs/monitoring.md)."""


@dashboards.command()
def push(
    grafana: Annotated[str, typer.Option(help="Grafana, such as http://127.0.0.1:3000; USER:PASSWORD@ may be in it.")],
    token: Annotated[
        str | None, typer.Option(envvar="GRAFANA_TOKEN", help="Of a service account that may edit.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(help="Prometheus as Grafana reaches it; makes or corrects the data source.")
    ] = None,
    datasource: Annotated[str, typer.Option(help="Its name in Grafana; Ray asks for Prometheus.")] = "Prometheus",
) -> None:
    """Create or update the folder asap-ray and its dashboards; a second push changes nothing."""
    try:
        from asap_ray.dashboards.push import Datasource, Grafana
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'asap-ray[grafana]'") from None
    from asap_ray.dashboards.boards import boards

    source = Datasource(datasource, prometheus) if prometheus else None
    console = Console(highlight=False, soft_wrap=True)
    for pushed in Grafana(grafana, token).push(boards(), source):
        console.print(f"{pushed.what}: {pushed.outcome}")
