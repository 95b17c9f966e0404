"""A device's loop in a thread of its own, beside the actor's control methods."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Loop:
    """Runs `serve` until it returns; `failure` says what ended it otherwise."""

    def __init__(self, serve: Callable[[], None], on_failure: Callable[[], None] = lambda: None) -> None:
        self.failure = ""
        self._serve = serve
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """`serving`, `stopped`, or the failure."""
        return self.failure or ("serving" if self._thread.is_alive() else "stopped")

    def join(self, timeout_s: float) -> None:
        """Wait for the loop to leave after its runtime was closed."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # crosses a thread: whoever reads `failure` raises
            _log.exception("the loop failed")
            self.failure = f"{type(error).__name__}: {error}"
            self._on_failure()
