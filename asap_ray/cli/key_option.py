"""The API key on a command line: a file, or the environment; never the key itself, which `ps` would show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

VARIABLE: Final = "ASAP_API_KEY"

ApiKeyFile = Annotated[Path | None, typer.Option(help=f"File with the API key; without it {VARIABLE}, if set.")]


def key_source(file: Path | None) -> str:
    """Where the key is, as `ServeConfig.api_key_from` says it; empty where there is none."""
    if file:
        return f"file:{file.resolve()}"
    return f"env:{VARIABLE}" if VARIABLE in os.environ else ""
