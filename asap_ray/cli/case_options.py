"""Options that `simulate` and `sweep` share: the model, the devices and the prompts of a simulated instance."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from asap_ray.cli.serve import Dp, Ep, Tp
from asap_ray.errors import ConfigError

if TYPE_CHECKING:
    from asap_ray.evaluation.points import Case

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


def _case(
    model: Model = "deepseek-v3.2",
    hardware: Hardware = "ascend-910c",
    interconnect: Interconnect = "supernode",
    dp: Dp = 4,
    tp: Tp = 4,
    ep: Ep = 16,
    skew: Skew = "uniform",
    trace: Trace = "A",
    dequantise: Dequantise = 0.0,
) -> Case:
    from asap_ray.evaluation.points import Case

    return Case(
        model=model,
        hardware=hardware,
        interconnect=interconnect,
        dp=dp,
        tp=tp,
        ep=ep,
        skew=skew,
        trace=trace,
        dequantise_s=dequantise,
    )


def of_a_case(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `_case` after its own, in place of its parameter `case`."""
    own, shared = _options(command), _options(_case)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(case=_case(**{name: values.pop(name) for name in shared}), **values)

    options = {name: option for name, option in (own | shared).items() if name != "case"}
    run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {name: option.annotation for name, option in options.items()}
    return run


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters by name, with their types in place of the names of these."""
    types = get_type_hints(function, localns={"Case": object}, include_extras=True)
    return {
        name: parameter.replace(annotation=types[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }
