"""An instance from a command line: start Ray if need be, run the application, end everything afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Self

import httpx
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from asap_ray.actors.placement import NAMESPACE, RESOURCE
from asap_ray.actors.proxy import CALLBACK, IMPORT_PATH
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, Unavailable

_OBJECT_STORE_BYTES: Final = 128 << 20
"""Prompts and tokens are all that passes through Ray; hidden states never do."""

_CONTROL_LOOP_S: Final = "1.0"
"""Serve's controller looks after one replica of ours; at its own 0.1 s it takes the devices' cores (docs/log.md)."""

_POLL_S: Final = 0.2
_STATUS_S: Final = 1.0


@contextlib.contextmanager
def running(
    config: ServeConfig, app: serve.Application, host: str, port: int, address: str | None = None
) -> Iterator[str]:
    """Serve `app` while the block runs; yields the URL once every device is ready.

    Joins the cluster at `address`, else starts one of its own and stops it at the end.

    Raises:
        ConfigError: the port is taken, or the cluster cannot hold the instance.
        Unavailable: the instance did not come up; the text says who is missing.
    """
    _refuse_taken(host, port)
    for logger in ("ray.serve", "ray._private.accelerators.npu", "ray._private.worker"):  # what they find on a CPU,
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # and that signals are ours
    with contextlib.ExitStack() as stack:
        with _StopLater() as stop:
            _connect(config, address)
            stack.callback(ray.shutdown)
            stop.listen()  # again: Ray has put handlers of its own, which end this process halfway
            stop.check()
            _deploy(config, app, HTTPOptions(host=host, port=port), address, stack)
            url = f"http://{host}:{port}"
            with _Deployment(config.name) as deployment:
                _await_ready(url, config, stop, deployment)
        stop.check()
        if not address:
            stack.callback(_delete, config.name)
        stack.callback(_drain, config)
        yield url


class _StopLater:
    """SIGINT and SIGTERM while the block runs: noted, and the program ends where it can end well, with 0."""

    def __init__(self) -> None:
        self._is_asked = False

    def __enter__(self) -> Self:
        self._interrupt = signal.getsignal(signal.SIGINT)
        self.listen()
        return self

    def listen(self) -> None:
        """To no other handler."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # from now on at once, through all that has to be ended

    def check(self) -> None:
        """Raise SystemExit if one came."""
        if self._is_asked:
            raise SystemExit(0)

    def _note(self, number: int, _frame: Any) -> None:
        if self._is_asked:  # asked twice: a step of the start hangs
            sys.exit(128 + number)
        self._is_asked = True


def _deploy(
    config: ServeConfig, app: serve.Application, http: HTTPOptions, address: str | None, stack: contextlib.ExitStack
) -> None:
    """Begin to serve; `stack` ends it, if the cluster is not our own: that ends as a whole."""
    if address and serve.status().proxies:
        raise ConfigError(f"Ray Serve already runs on the cluster at {address}; use `serve deploy` there")
    serve.start(http_options=http)
    if address:
        stack.callback(serve.shutdown)
        stack.callback(_delete, config.name)
    serve.run_many([serve.RunTarget(app, config.name)], wait_for_applications_running=False)


def wait_for_signal() -> str:
    """Block until SIGINT or SIGTERM; its name."""
    received = threading.Event()
    name: list[str] = []

    def note(number: int, _frame: Any) -> None:
        name.append(signal.Signals(number).name)
        received.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    received.wait()
    return name[0]


def _connect(config: ServeConfig, address: str | None) -> None:
    if address:
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RayError) as error:
            raise ConfigError(f"no Ray cluster at {address!r}: {error}") from None
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", _CONTROL_LOOP_S)
    os.environ.setdefault(CALLBACK, IMPORT_PATH)
    ray.init(
        num_cpus=config.parallel.num_devices,
        resources={RESOURCE: config.parallel.num_devices},
        object_store_memory=_OBJECT_STORE_BYTES,
        namespace=NAMESPACE,
        include_dashboard=True,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _drain(config: ServeConfig) -> None:
    """Answer 503 while running batches finish; without it Serve's proxy would answer 404 from the first moment."""

    async def drained() -> None:  # in a loop: outside of one a handle does not work under Serve's fast settings
        await asyncio.wait_for(serve.get_app_handle(config.name).drain.remote(), 2 * config.prefill.deadline_s)

    with contextlib.suppress(RayError, TimeoutError, RayServeException):
        asyncio.run(drained())


def _await_ready(url: str, config: ServeConfig, stop: _StopLater, deployment: _Deployment) -> None:
    deadline_s = time.monotonic() + config.start_timeout_s
    missing = "no answer"
    while time.monotonic() < deadline_s:
        stop.check()
        if deployment.failure:
            raise Unavailable(f"Ray Serve did not deploy {config.name}: {deployment.failure}")
        with contextlib.suppress(httpx.TransportError):
            reply = httpx.get(f"{url}/ready", timeout=5.0, trust_env=False)
            if reply.status_code == httpx.codes.OK:
                return
            missing = _message(reply)
            if "start failed" in missing:
                raise Unavailable(missing)
        time.sleep(_POLL_S)
    raise Unavailable(f"not ready after {config.start_timeout_s:g} s: {missing}")


class _Deployment:
    """Asks Serve's controller for an application once a second, in a thread: that call has no deadline of its own."""

    def __init__(self, name: str) -> None:
        self.failure = ""  # why Serve has given it up
        self._name = name
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(_STATUS_S):
            with contextlib.suppress(RayError, RayServeException):  # its controller is away, perhaps for now
                found = serve.status().applications.get(self._name)
                if found and found.status == ApplicationStatus.DEPLOY_FAILED:
                    self.failure = found.message


def _message(reply: httpx.Response) -> str:
    """Why not ready: ours in the OpenAI shape, or Serve's proxy in its own words."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {reply.status_code}: {reply.text[:200]}"


def _delete(name: str) -> None:
    """Remove the application; one that does not drain in time is ended by Serve, its devices by their lease."""
    with contextlib.suppress(RayError, TimeoutError, RayServeException):
        serve.delete(name)


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
