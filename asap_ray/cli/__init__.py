"""The command line: `asap-ray --help` lists its commands."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from asap_ray import __version__
from asap_ray.cli.dashboards import dashboards
from asap_ray.cli.decode import decode
from asap_ray.cli.demo import demo
from asap_ray.cli.layout import layout
from asap_ray.cli.make_model import make_model
from asap_ray.cli.placement import placement
from asap_ray.cli.plan import plan
from asap_ray.cli.replay import replay
from asap_ray.cli.report import report
from asap_ray.cli.serve import serve
from asap_ray.cli.simulate import simulate
from asap_ray.cli.sweep import sweep
from asap_ray.cli.timeline import timeline
from asap_ray.cli.top import top
from asap_ray.errors import AsapError

app = typer.Typer(
    help=f"Asynchronous, disaggregated prefill of Mixture-of-Experts models on Ray. Version {__version__}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    serve,
    decode,
    top,
    timeline,
    replay,
    demo,
    simulate,
    sweep,
    report,
    plan,
    placement,
    layout,
    make_model,
):
    app.command()(command)
app.add_typer(dashboards, name="dashboards")


def main() -> None:
    """Entry point: an expected error is one line on stderr and exit status 2."""
    try:
        app()
    except AsapError as error:
        Console(stderr=True).print(f"asap-ray: {error}", style="red", soft_wrap=True, markup=False, highlight=False)
        sys.exit(2)
