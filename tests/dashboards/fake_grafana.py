"""A stand-in for Grafana's HTTP API, as far as a push needs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class FakeGrafana:
    """What it holds, what it was asked, and what it answers to everything instead, if set."""

    url: str = ""
    folders: dict[str, Any] = field(default_factory=dict)
    datasources: dict[str, Any] = field(default_factory=dict)
    dashboards: dict[str, Any] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)
    instead: tuple[int, str] | None = None

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and body."""
        if method != "GET":
            self.written.append(f"{method} {path}")
        match [method, *path.strip("/").split("/")]:
            case ["GET", "api", "folders", uid]:
                return found(self.folders.get(uid))
            case ["POST", "api", "folders"]:
                self.folders[body["uid"]] = body
                return 200, body
            case ["GET", "api", "datasources", "name", name]:
                return found(self.datasources.get(name))
            case ["POST", "api", "datasources"]:
                self.datasources[body["name"]] = body | {"id": 7, "jsonData": {}}
                return 200, {}
            case ["PUT", "api", "datasources", "7"]:
                self.datasources[body["name"]] = body
                return 200, {}
            case ["GET", "api", "dashboards", "uid", uid]:
                return found(self.dashboards.get(uid))
            case ["POST", "api", "dashboards", "db"] if body["folderUid"] in self.folders:
                added = {"id": 3, "version": len(self.written)}
                meta = {"folderUid": body["folderUid"]}
                self.dashboards[body["dashboard"]["uid"]] = {"dashboard": body["dashboard"] | added, "meta": meta}
                return 200, {"status": "success"}
        return 404, {"message": f"no route {method} {path}"}


def found(thing: Any) -> tuple[int, Any]:
    """It, or Grafana's way to say that it is not there."""
    return (200, thing) if thing else (404, {"message": "not found"})


@contextmanager
def serving() -> Iterator[FakeGrafana]:
    """One that listens on a port of its own."""
    fake = FakeGrafana()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.logins.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, text = fake.instead or answered(fake, self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def answered(fake: FakeGrafana, method: str, path: str, body: bytes) -> tuple[int, str]:
    """Status and JSON."""
    status, reply = fake.answer(method, path, json.loads(body) if body else None)
    return status, json.dumps(reply)
