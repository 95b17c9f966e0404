"""Who looks after a device: detached actors must neither outlive all interest nor die by a stale hand."""

from __future__ import annotations

import threading
import time
from typing import Final

from ray.util.placement_group import get_current_placement_group, remove_placement_group

from asap_ray.config import ServeConfig

LOOK_S: Final = 1.0
FRESH_S: Final = 5.0
"""A frontend asks for the state every second; one that has not for so long is gone or going."""


class Lease:
    """Frontends renew it by asking for a device's state; when none does, the whole instance ends.

    An instance is ended by removing its placement group, which frees its devices too. That happens where
    nobody could do it otherwise: a frontend that was killed while it drained, a job that never came back.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._timeout_s = config.orphan_timeout_s
        self._asked_s: dict[str, float] = {}
        self._expires_s = time.monotonic() + config.start_timeout_s + config.orphan_timeout_s
        threading.Thread(target=self._expire, name="lease", daemon=True).start()

    def renew(self, frontend: str) -> None:
        """This frontend is here."""
        self._asked_s[frontend] = time.monotonic()
        self._expires_s = self._asked_s[frontend] + self._timeout_s

    def release(self, frontend: str) -> bool:
        """This frontend is leaving; whether it was the last. If not, it must not end the device."""
        self._asked_s.pop(frontend, None)
        fresh_s = time.monotonic() - FRESH_S
        return not any(asked_s > fresh_s for asked_s in self._asked_s.values())

    def _expire(self) -> None:
        while time.monotonic() < self._expires_s:  # a renewal may bring it nearer, too
            time.sleep(LOOK_S)
        if placement := get_current_placement_group():
            remove_placement_group(placement)
