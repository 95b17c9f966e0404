"""asap-ray layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from asap_ray.cli.serve import Dp, Ep, Tp
from asap_ray.layout import areas, layout_of, table_2
from asap_ray.spec import Combine, Instance, ParallelSpec, paper


def layout(
    dp: Dp = 4,
    tp: Tp = 4,
    ep: Ep = 16,
    max_tokens: Annotated[int, typer.Option(help="Longest batch, S.")] = paper().prefill.max_tokens,
    model: Annotated[Path | None, typer.Option(help="A checkpoint instead of the paper's model.")] = None,
) -> None:
    """Print the bytes of the shared buffers for both combine modes, beside the paper's Table 2."""
    from asap_ray.models.model import load_model

    solo_tokens = max_tokens // 2
    inflection_tokens = min(paper().prefill.inflection_tokens, solo_tokens)
    instance = Instance(
        model=load_model(str(model)).spec if model else paper().model,
        parallel=ParallelSpec(dp_groups=dp, tp=tp, moe_devices=ep),
        prefill=replace(
            paper().prefill, max_tokens=max_tokens, solo_tokens=solo_tokens, inflection_tokens=inflection_tokens
        ),
    )
    Console().print(_table(instance))


def _table(instance: Instance) -> Table:
    table = Table(title=f"Bytes of one device's buffer, {instance.parallel}")
    for column in ("buffers", "device", "area"):
        table.add_column(column)
    table.add_column("bytes", justify="right")
    kinds = {mode: replace(instance, prefill=replace(instance.prefill, combine=mode)) for mode in Combine}
    ours = {f"ours, {mode}": areas(layout_of(kind)) for mode, kind in kinds.items()}
    for title, rows in {"paper, Table 2": table_2(instance), **ours}.items():
        for area in rows:
            table.add_row(title, area.device, area.what, f"{area.num_bytes:,}")
        table.add_section()
    return table
