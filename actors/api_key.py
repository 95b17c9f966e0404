"""Who may ask: one bearer key for every route, but those that probes and Prometheus call."""

from __future__ import annotations

import hmac
import os
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, HTTPException, Request

from asap_ray.errors import ConfigError

OPEN: Final = frozenset({"/health", "/ping", "/ready", "/version", "/metrics", "/duty"})
"""They tell how the instance is, never what it was asked. FastAPI asks nobody for a key of `/openapi.json`."""


def key_required(source: str) -> list[Any]:
    """Dependencies of an application whose routes need the key at `source`; none if that is empty.

    Raises:
        ConfigError: see `read_key`.
    """
    if not source:
        return []
    expected = read_key(source).encode()

    async def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1"), expected) and scheme.lower() == "bearer"
        if not is_right and request.scope["route"].path not in OPEN:
            raise HTTPException(
                HTTPStatus.UNAUTHORIZED,
                "this instance needs its API key: Authorization: Bearer KEY",
                {"WWW-Authenticate": "Bearer"},
            )

    return [Depends(check)]


def read_key(source: str) -> str:
    """The key at `env:NAME` or `file:PATH` (`ServeConfig.api_key_from`), read in this process; no message shows it.

    Raises:
        ConfigError: nothing is there, or more than one word of printable ASCII.
    """
    kind, _, where = source.partition(":")
    try:
        text = os.environ[where] if kind == "env" else Path(where).read_text(encoding="latin-1")
    except KeyError:
        raise ConfigError(f"no API key at {source}: not set in the environment") from None
    except OSError as error:
        raise ConfigError(f"no API key at {source}: {error.strerror}") from None
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or len(key.split()) != 1:
        raise ConfigError(f"no API key at {source}: what is there is not one word of printable ASCII")
    return key
