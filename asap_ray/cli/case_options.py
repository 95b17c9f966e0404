"""Options that `simulate` and `sweep` share: the model, the devices and the prompts of a simulated instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from asap_ray.errors import ConfigError

_T = TypeVar("_T")

Model = Annotated[str, typer.Option(help="deepseek-v3.2, qwen3-235b-a22b, kimi-k2 or mixtral-8x22b.")]
Hardware = Annotated[str, typer.Option(help="Preset of one device.")]
Interconnect = Annotated[str, typer.Option(help="supernode, rdma or ethernet.")]
Skew = Annotated[str, typer.Option(help="Of expert choice: uniform, zipf:EXPONENT or counts:FILE.")]
Trace = Annotated[str, typer.Option(help="Length preset A, B, C or M; bundled; or a trace file.")]
Dequantise = Annotated[float, typer.Option(help="Spread the clumped times of a trace over so many seconds.", min=0.0)]
Duration = Annotated[float, typer.Option(help="Seconds of arrivals of each run; a run ends with its last answer.")]
Slo = Annotated[float, typer.Option(help="TTFT objective in seconds (5 in the paper).")]
Out = Annotated[Path, typer.Option(help="Directory of the journal; finished points in it are not run again.")]
NumWorkers = Annotated[int | None, typer.Option("--workers", help="Processes; default: one a core.", min=1)]


def several(text: str, what: str, kind: Callable[[str], _T]) -> tuple[_T, ...]:
    """The values between the commas of an option.

    Raises:
        ConfigError: there is none, or one is not of this kind.
    """
    try:
        values = tuple(kind(word.strip()) for word in text.split(",") if word.strip())
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        values = ()
    if not values:
        raise ConfigError(f"--{what} {text!r} must be one or more values with commas between")
    return values
