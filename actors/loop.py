"""A device's loop in a thread of its own, beside the actor's control methods."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Loop:
    """Runs `serve` until it returns; `state` says whether it still does, and what ended it otherwise."""

    def __init__(self, serve: Callable[[], None], on_end: Callable[[], None] = lambda: None) -> None:
        self.state = "serving"
        self._serve = serve
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the loop to leave: after its runtime was closed, or whenever it does."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._serve()
            self.state = "stopped"
        except BaseException as error:  # crosses a thread: whoever reads `state` raises
            _log.exception("the loop failed")
            self.state = f"{type(error).__name__}: {error}"
        self._on_end()
