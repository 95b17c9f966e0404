"""A trace replay against a served instance, over HTTP or a Serve handle, from a shell or a Ray job."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import shlex
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from asap_ray.actors.endpoints import Endpoint
from asap_ray.errors import ConfigError
from asap_ray.evaluation.progress import Progress
from asap_ray.evaluation.replay_html import write_html
from asap_ray.evaluation.replay_report import (
    Report,
    check_writable,
    summarise,
    summary_table,
    this_machine,
    write_json,
)
from asap_ray.evaluation.watch import Watch
from asap_ray.telemetry.trace_events import write_trace
from asap_ray.workload.client import Plan, Result, replay
from asap_ray.workload.http_target import ServedModel
from asap_ray.workload.shaping import Shaping
from asap_ray.workload.trace import TraceRequest
from asap_ray.workload.trace_file import bundled_trace, read_trace

_log = logging.getLogger(__name__)
_PROBE_S: Final = 0.001


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
        watch = Watch()
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._replay(connecting, requests, results, watch))
        report = Report(
            title=f"Replay of {path.name}",
            date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join(["asap-ray", *sys.argv[1:]]),
            trace=f"{path.name}: {self.shaping.text()}",
            machine=this_machine(),
            slo_s=self.slo_s,
            results=sorted(results, key=lambda result: result.index),
            watch=watch,
        )
        console = Console(highlight=False, soft_wrap=True)
        console.print(summary_table(summarise(report.results, self.slo_s)))  # even if the disk is full
        write_json(json_file, report)
        write_html(html_file, report)
        if len(results) < len(requests):
            console.print(f"interrupted: {len(requests) - len(results)} of {len(requests)} requests had not ended")
        console.print(f"report: {html_file}\nresults: {json_file}")
        return report

    async def _replay(
        self,
        connecting: AbstractAsyncContextManager[Endpoint],
        requests: list[TraceRequest],
        results: list[Result],
        watch: Watch,
    ) -> None:
        """Append to `results` and `watch`, so that an interruption keeps them."""

        num_errors = 0

        def ended(result: Result) -> None:
            nonlocal num_errors
            results.append(result)
            num_errors += result.error is not None
            progress.update(len(results), num_errors)

        async with connecting as endpoint, watch.over(endpoint.look):
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
