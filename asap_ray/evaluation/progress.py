"""How far long work is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

LOG_EVERY_S: Final = 5.0


class Progress:
    """So many of a total have ended, and a count of something else beside them."""

    def __init__(self, console: Console, total: int, what: str, beside: str) -> None:
        """`what` is counted to `total`; `beside` names the other count, as in "3 errors"."""
        self._console = console
        self._total = total
        self._what = what
        self._beside = beside
        self._logged_s = time.monotonic()
        self._bar = Bar(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{{task.fields[beside]}} {beside}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total, beside=0)

    def update(self, num_ended: int, num_beside: int) -> None:
        """So many are there now."""
        self._bar.update(self._task, completed=num_ended, beside=num_beside)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            self._console.print(f"{num_ended} of {self._total} {self._what} ended, {num_beside} {self._beside}")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
