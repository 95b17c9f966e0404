"""How far an exploration is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from asap_ray.evaluation.progress import LOG_EVERY_S


class SweepProgress:
    """Counts searches that have ended, and the points that were simulated for them."""

    def __init__(self, console: Console, num_searches: int) -> None:
        self._console = console
        self._num_searches = num_searches
        self._num_points = 0
        self._logged_s = time.monotonic()
        self._bar = Bar(
            TextColumn("searches"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[points]} points simulated"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("searches", total=num_searches, points=0)

    def __call__(self, num_ended: int) -> None:
        """One more point was simulated."""
        self._num_points += 1
        self._bar.update(self._task, completed=num_ended, points=self._num_points)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            self._console.print(f"{num_ended} of {self._num_searches} searches ended, {self._num_points} points")

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
