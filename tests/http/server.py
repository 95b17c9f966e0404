"""A service behind a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn

from asap_ray.actors.frontend import build_api
from asap_ray.actors.service import PrefillService


@contextlib.contextmanager
def serving(service: PrefillService) -> Iterator[str]:
    """Its address on a free loopback port; the socket listens before the server runs, so nobody polls."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(build_api(service), log_level="critical", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
