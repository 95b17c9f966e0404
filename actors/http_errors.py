"""Errors as HTTP: the status, the OpenAI shape, and when to come back."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from asap_ray.actors.openai import error_body
from asap_ray.errors import AsapError, Overloaded, RequestError, Unavailable

_RETRY_UNAVAILABLE_S: Final = 5
"""A lost device takes seconds to come back."""

_CLIENT_CLOSED: Final = 499
"""Nobody reads it; it is for access logs."""

Handler = Callable[[Request, Exception], Awaitable[Response]]

_log = logging.getLogger(__name__)


def error_of(error: AsapError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of an error; only what was written for callers is told."""
    if isinstance(error, RequestError):
        return HTTPStatus.BAD_REQUEST, error_body(HTTPStatus.BAD_REQUEST, str(error), error.param), {}
    if isinstance(error, Overloaded):
        after = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
        return HTTPStatus.TOO_MANY_REQUESTS, error_body(HTTPStatus.TOO_MANY_REQUESTS, str(error)), after
    if isinstance(error, Unavailable):
        after = {"Retry-After": str(_RETRY_UNAVAILABLE_S)}
        return HTTPStatus.SERVICE_UNAVAILABLE, error_body(HTTPStatus.SERVICE_UNAVAILABLE, str(error)), after
    _log.error("a request failed", exc_info=error)
    return HTTPStatus.INTERNAL_SERVER_ERROR, _internal(), {}


def add_error_handlers(api: FastAPI, count: Callable[[int], None]) -> None:
    """Every error of every route in the OpenAI shape; `count` is told the status of each that a client can read."""
    api.add_exception_handler(AsapError, _counted(_on_asap_error, count))
    api.add_exception_handler(HTTPException, _counted(_on_http_error, count))
    api.add_exception_handler(ClientDisconnect, _on_client_gone)
    api.add_exception_handler(Exception, _counted(_on_bug, count))


def _counted(handler: Handler, count: Callable[[int], None]) -> Handler:
    async def handle(request: Request, error: Exception) -> Response:
        response = await handler(request, error)
        count(response.status_code)
        return response

    return handle


async def _on_asap_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AsapError)
    status, body, headers = error_of(error)
    return JSONResponse(body, status, headers)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)


async def _on_bug(_: Request, __: Exception) -> Response:
    """The server logs it with its traceback."""
    return JSONResponse(_internal(), HTTPStatus.INTERNAL_SERVER_ERROR)


def _internal() -> dict[str, Any]:
    return error_body(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the server's log has its cause")
