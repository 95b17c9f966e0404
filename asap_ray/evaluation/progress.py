"""How far a replay is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from asap_ray.workload.client import Result

LOG_EVERY_S: Final = 5.0


class Progress:
    """Counts what has ended."""

    def __init__(self, num_requests: int) -> None:
        self._console = Console(highlight=False)
        self._num_requests = num_requests
        self._num_ended = 0
        self._num_errors = 0
        self._logged_s = time.monotonic()
        self._bar = Bar(
            TextColumn("replay"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[errors]} errors"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("replay", total=num_requests, errors=0)

    def advance(self, result: Result) -> None:
        """One more request has ended."""
        self._num_ended += 1
        self._num_errors += result.error is not None
        self._bar.update(self._task, advance=1, errors=self._num_errors)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            self._console.print(f"{self._num_ended} of {self._num_requests} ended, {self._num_errors} errors")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
