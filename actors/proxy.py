"""What Ray Serve's proxy says for a frontend that died with a request: that it may be sent again.

Its proxy loads `middlewares` where the cluster was started with CALLBACK set to IMPORT_PATH, on every node. By itself
it sends nothing for a request whose replica is gone, and its HTTP server makes 500 of that, or cuts the stream. Our
application begins an answer to every request it ends, so nothing else looks like this (docs/failures.md).
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asap_ray.actors.http_errors import error_of
from asap_ray.errors import Unavailable

CALLBACK: Final = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
IMPORT_PATH: Final = "asap_ray.actors.proxy.middlewares"

_GONE: Final = Unavailable("the frontend that had this request is gone; send it again")
_REQUEST_ID: Final = "X-Request-ID"


def middlewares() -> list[Middleware]:
    """What Serve's proxy puts around every request."""
    return [Middleware(Retriable)]


class Retriable:
    """503 with Retry-After where no answer has begun, an error event where a stream has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; an ASGI application is a call."""
        sent = _Sent(send)
        await self._app(scope, receive, sent)
        if scope["type"] != "http" or sent.is_whole:
            return
        status, body, headers = error_of(_GONE)
        if not sent.has_begun:
            request_id = Headers(scope=scope).get(_REQUEST_ID, "")  # which the proxy has put there
            await JSONResponse(body, status, {**headers, _REQUEST_ID: request_id})(scope, receive, send)
        elif sent.is_stream:
            event = f"data: {json.dumps(body, separators=(',', ':'))}\n\ndata: [DONE]\n\n"
            await send({"type": "http.response.body", "body": event.encode()})


class _Sent:
    """Passes an answer on, and knows how far it has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self.is_stream = False
        self.is_whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
            if message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:  # the proxy's own has no such header
                headers.setdefault("Retry-After", error_of(_GONE)[2]["Retry-After"])
        elif message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)
        await self._send(message)
