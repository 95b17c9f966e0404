"""A trace replay against a served instance, over HTTP or a Serve handle, from a shell or a Ray job."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from rich.console import Console

from asap_ray.actors.handle_target import HandleTarget
from asap_ray.actors.timeline import read_timeline
from asap_ray.errors import ConfigError
from asap_ray.evaluation.progress import Progress
from asap_ray.evaluation.replay_html import write_html
from asap_ray.evaluation.replay_report import (
    Report,
    Utilisation,
    check_writable,
    summarise,
    summary_table,
    this_machine,
    write_json,
)
from asap_ray.evaluation.utilisation import ReadDuty, sampled
from asap_ray.messages import decode
from asap_ray.telemetry.trace_events import write_trace
from asap_ray.tracks import Timeline
from asap_ray.workload.client import Plan, Result, Target, replay
from asap_ray.workload.http_target import HttpTarget, ServedModel, connect, served_model
from asap_ray.workload.shaping import Shaping
from asap_ray.workload.trace import TraceRequest
from asap_ray.workload.trace_file import bundled_trace, read_trace

CONNECT_S: Final = 30.0
_log = logging.getLogger(__name__)
_PROBE_S: Final = 0.001


ReadTimeline = Callable[[float], Awaitable[Timeline]]
"""What every device did in the last so many seconds; raises ConfigError where nobody records."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A served instance: where to send prompts, what it serves, and how busy its devices say they are."""

    target: Target
    model: ServedModel
    duty: ReadDuty
    timeline: ReadTimeline


@contextlib.asynccontextmanager
async def http_endpoint(url: str, key: str = "") -> AsyncIterator[Endpoint]:
    """An OpenAI-compatible server, with its API key if it has one; device utilisation only where it is one of ours."""
    async with connect(url, key) as client:
        model = await served_model(client)

        async def duty() -> Mapping[str, float]:
            try:
                reply = await client.get("/duty", timeout=5.0)
                return _by_device({name: each["compute_s"] for name, each in reply.raise_for_status().json().items()})
            except (httpx.HTTPError, ValueError):
                return {}

        yield Endpoint(HttpTarget(client, model.name), model, duty, partial(read_timeline, client))


@contextlib.asynccontextmanager
async def app_endpoint(name: str, address: str) -> AsyncIterator[Endpoint]:
    """A Serve application of the cluster at `address`; prompts go through its handle."""
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        handle = serve.get_app_handle(name)
    except (ConnectionError, ValueError, RayError, RayServeException) as error:
        raise ConfigError(f"no application {name!r} on the cluster at {address!r}: {error}") from None
    try:
        model = ServedModel(**await asyncio.wait_for(handle.describe.remote(), CONNECT_S))
    except TimeoutError:
        raise ConfigError(f"application {name!r} did not answer within {CONNECT_S:g} s") from None

    async def duty() -> Mapping[str, float]:
        totals: Mapping[str, float] = {}
        with contextlib.suppress(RayError):
            totals = await handle.compute_seconds.remote()
        return _by_device(totals)

    async def timeline(last_s: float) -> Timeline:
        try:
            return decode(Timeline, await handle.timeline.remote(last_s))
        except RayError as error:
            raise ConfigError(f"application {name!r} gave no timeline: {error}") from None

    yield Endpoint(HandleTarget(handle), model, duty, timeline)


def _by_device(totals: Mapping[str, float]) -> dict[str, float]:
    """Totals by `attention:0`, `moe:1`: an actor's name without its instance's."""
    return {":".join(name.split(":")[-2:]): seconds for name, seconds in totals.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay, from the trace to the report."""

    trace: Path | None  # None: the bundled one
    shaping: Shaping
    out: Path  # directory of the results
    timeline: Path | None = None  # a trace of its last seconds, as far as the devices keep them
    vocab_size: int | None = None  # None: as the endpoint says
    max_tokens: int = 1
    timeout_s: float = 600.0
    slo_s: float = 5.0

    def run(self, connecting: AbstractAsyncContextManager[Endpoint]) -> Report:
        """Replay, print the table, write the files; an interruption keeps what has ended.

        Raises:
            ConfigError: the trace, the endpoint or the directory is wrong; nothing was sent.
        """
        json_file, html_file = self._files()
        path = self.trace or bundled_trace()
        requests = self.shaping.apply(read_trace(path))
        results: list[Result] = []
        samples: list[Utilisation] = []
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._replay(connecting, requests, results, samples))
        report = Report(
            title=f"Replay of {path.name}",
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join(["asap-ray", *sys.argv[1:]]),
            trace=f"{path.name}: {self.shaping.text()}",
            machine=this_machine(),
            slo_s=self.slo_s,
            results=sorted(results, key=lambda result: result.index),
            utilisation=samples,
        )
        write_json(json_file, report)
        write_html(html_file, report)
        console = Console(highlight=False, soft_wrap=True)
        console.print(summary_table(summarise(report.results, self.slo_s)))
        if len(results) < len(requests):
            console.print(f"interrupted: {len(requests) - len(results)} of {len(requests)} requests had not ended")
        console.print(f"report: {html_file}\nresults: {json_file}")
        return report

    async def _replay(
        self,
        connecting: AbstractAsyncContextManager[Endpoint],
        requests: list[TraceRequest],
        results: list[Result],
        samples: list[Utilisation],
    ) -> None:
        """Append to `results` and `samples`, so that an interruption keeps them."""

        num_errors = 0

        def ended(result: Result) -> None:
            nonlocal num_errors
            results.append(result)
            num_errors += result.error is not None
            progress.update(len(results), num_errors)

        async with connecting as endpoint, sampled(endpoint.duty, samples):
            if self.timeline:  # nobody who records: better said now
                await endpoint.timeline(_PROBE_S)
            plan = Plan(
                requests=requests,
                vocab_size=self._vocab_size(endpoint.model),
                seed=self.shaping.seed,
                max_tokens=self.max_tokens,
                timeout_s=self.timeout_s,
            )
            with Progress(Console(highlight=False), len(requests), "requests", "errors") as progress:
                began_s = time.monotonic()
                await replay(plan, endpoint.target, ended)
            if self.timeline:
                await _write_timeline(self.timeline, endpoint, time.monotonic() - began_s)

    def _files(self) -> tuple[Path, Path]:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make directory {self.out}: {error.strerror}") from None
        files = self.out / "replay.json", self.out / "replay.html"
        for file in filter(None, (*files, self.timeline)):
            check_writable(file)
        return files

    def _vocab_size(self, model: ServedModel) -> int:
        size = self.vocab_size or model.vocab_size
        if size is None:
            raise ConfigError(f"{model.name} does not say its vocabulary size; give --vocab-size")
        return size


async def _write_timeline(path: Path, endpoint: Endpoint, last_s: float) -> None:
    """An instance that is gone by now must not cost the report."""
    try:
        write_trace(path, await endpoint.timeline(last_s))
    except ConfigError as error:
        _log.error("no timeline: %s", error)
