"""Who looks after a device: detached actors must neither outlive all interest nor die by a stale hand."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group, remove_placement_group

from asap_ray.actors.placement import NAMESPACE, running_names

FRESH_S: Final = 12.0
"""A frontend asks every second, and for at most this long if a device is slow to answer (recovery.py)."""


class Lease:
    """Frontends renew it by asking for a device's state or giving it work; when none did for long, it expires, once."""

    def __init__(self, first_s: float, timeout_s: float, on_expiry: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._on_expiry = on_expiry
        self._changed = threading.Condition()
        self._asked_s: dict[str, float] = {}
        self._expires_s = time.monotonic() + first_s
        threading.Thread(target=self._expire, name="lease", daemon=True).start()

    def renew(self, frontend: str) -> None:
        """This frontend is here."""
        with self._changed:
            self._asked_s[frontend] = time.monotonic()
            self._expires_s = self._asked_s[frontend] + self._timeout_s
            self._changed.notify_all()

    def is_held_by(self, frontend: str) -> bool:
        """Whether this frontend would keep the device alive: it came, has not left, and asked within the timeout."""
        with self._changed:
            return self._asked_s.get(frontend, float("-inf")) > time.monotonic() - self._timeout_s

    def is_fresh(self, frontend: str) -> bool:
        """Whether this frontend asked just now, or as lately as a slow device lets it."""
        with self._changed:
            return self._asked_s.get(frontend, float("-inf")) > time.monotonic() - FRESH_S

    def release(self, frontend: str) -> bool:
        """This frontend is leaving; whether it was the last. If not, it must not end the device."""
        with self._changed:
            self._asked_s.pop(frontend, None)
            fresh_s = time.monotonic() - FRESH_S
            return not any(asked_s > fresh_s for asked_s in self._asked_s.values())

    def _expire(self) -> None:
        with self._changed:
            while (left_s := self._expires_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
        self._on_expiry()


def end_instance() -> None:
    """End all actors of the instance this one is of, itself last, and free its devices.

    For where nobody else could: a frontend killed while it drained, a job that never came back. Removing the
    placement group alone would leave actors that Ray tries to start again, for ever.
    """
    mine = ray.get_runtime_context().get_actor_name() or ""
    while True:
        with contextlib.suppress(RayError, ValueError):  # Ray's head may be away for a while; others end them too
            me = ray.get_actor(mine, namespace=NAMESPACE)
            for other in running_names(mine.rsplit(":", 2)[0]):
                if other != mine:
                    ray.kill(ray.get_actor(other, namespace=NAMESPACE))
            if placement := get_current_placement_group():
                remove_placement_group(placement)
            ray.kill(me)
        time.sleep(FRESH_S)
