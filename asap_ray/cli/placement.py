"""asap-ray placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from asap_ray.cli.serve import Ep
from asap_ray.whole_file import write_whole


def placement(
    counts: Annotated[Path, typer.Option(help="Rows by expert: JSON, or a metrics page with asap_expert_rows.")],
    experts: Annotated[int, typer.Option(help="Experts of a layer; those without a count had no rows.", min=1)],
    ep: Ep = 2,
    redundant: Annotated[int, typer.Option(help="Places beyond one an expert.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="File to write, for `placement` of a configuration.")] = Path(
        "placement.json"
    ),
) -> None:
    """Place experts on MoE devices by measured counts, hot ones on several, and print what each device gets."""
    from asap_ray.evaluation.places import place, read_counts
    from asap_ray.placement import contiguous

    counts_X = read_counts(counts, experts)
    placed = place(counts_X, ep, redundant)
    plain = contiguous(len(counts_X), ep)
    table = Table(title=f"{len(counts_X)} experts in {placed.num_places} places; rows over the mean device's")
    for column in ("MoE device", "in order of ids", "placed", "experts that are elsewhere too"):
        table.add_column(column, justify="right")
    loads = zip(plain.loads(counts_X), placed.loads(counts_X), placed.experts, strict=True)
    for e, (before, after, mine) in enumerate(loads):
        shared = sum(placed.expert_of_place.count(x) > 1 for x in mine)
        table.add_row(str(e), f"{before:.2f}", f"{after:.2f}", str(shared))
    console = Console(highlight=False)
    console.print(table)
    write_whole(out, json.dumps({"experts": placed.experts}) + "\n")
    console.print(f"{out} is for `placement` of asap-ray serve --config", markup=False)
