"""Which of an application's instances a replica owns: a claim in Ray's control store, of which the newest counts.

An instance has one scheduler, so one owner. A claim is never changed nor taken back; it ends with the actor that made
it, whose name Ray gives to nobody else. Whoever finds the newest claim's owner dead writes the next one, which Ray's
store lets only one do (ADR 0008).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

import ray
from ray.experimental import internal_kv

from asap_ray.actors.placement import NAMESPACE, running_names
from asap_ray.actors.pulse import end_hung

_STORE: Final = b"asap-ray claims"

_log = logging.getLogger(__name__)


class Store(Protocol):
    """Strings by key, for all processes of a cluster."""

    def keys(self, prefix: str) -> list[str]:
        """Those that start so."""

    def get(self, key: str) -> str | None:
        """What is there."""

    def put(self, key: str, value: str) -> bool:
        """Write what is not there yet; whether it was not."""

    def drop(self, key: str) -> None:
        """Forget it."""


class RayStore:
    """Ray's own: it lives as long as the cluster's head."""

    def keys(self, prefix: str) -> list[str]:
        """See `Store`."""
        return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_STORE)]

    def get(self, key: str) -> str | None:
        """See `Store`."""
        value: bytes | None = internal_kv._internal_kv_get(key, namespace=_STORE)
        return None if value is None else value.decode()

    def put(self, key: str, value: str) -> bool:
        """See `Store`."""
        return not internal_kv._internal_kv_put(key, value, overwrite=False, namespace=_STORE)

    def drop(self, key: str) -> None:
        """See `Store`."""
        internal_kv._internal_kv_del(key, namespace=_STORE)


def own_name() -> str:
    """Of the actor that runs this: who it claims as."""
    return ray.get_runtime_context().get_actor_name() or ""


def is_alive(actor: str) -> bool:
    """Whether Ray knows a living actor of this name among those of Serve."""
    with contextlib.suppress(ValueError):
        ray.get_actor(actor, namespace=NAMESPACE)
        return True
    return False


def instance_name(app: str, index: int) -> str:
    """The first instance has the application's name."""
    return f"{app}:{index}" if index else app


class Claims:
    """The instances of one application, by index."""

    def __init__(
        self,
        app: str,
        store: Store | None = None,
        lives: Callable[[str], bool] = is_alive,
        runs: Callable[[str], bool] = lambda name: bool(running_names(name)),
        end: Callable[[Collection[str]], list[str]] = end_hung,
    ) -> None:
        self._app = app
        self._store = store or RayStore()
        self._lives = lives
        self._runs = runs
        self._end = end

    def take(self, owner: str) -> str:
        """Name of an instance that from now on is `owner`'s alone, as long as that actor lives.

        One whose owner is dead, rather one whose devices still run; if every owner lives, a new one. An owner that
        hangs is ended first: nobody else would for long.
        """
        dead = set(self._end([its for _, its in self._newest().values() if self._lives(its)]))
        for name in dead:  # Ray, too, will notice
            _log.warning("%s hung and was ended: its instance is taken over", name)
        while True:
            newest = self._newest()
            free = [index for index, (_, its) in newest.items() if its in dead or not self._lives(its)]
            free.sort(key=lambda index: (not self._runs(instance_name(self._app, index)), index))
            index = free[0] if free else min(set(range(len(newest) + 1)) - newest.keys())
            claim = newest[index][0] + 1 if index in newest else 0, owner
            is_first = self._store.put(self._key(index, claim[0]), owner)
            if is_first and self._newest().get(index) == claim:  # else a later one came and went meanwhile
                for number in self._numbers().get(index, []):
                    if number < claim[0]:
                        self._store.drop(self._key(index, number))
                return instance_name(self._app, index)

    def _newest(self) -> dict[int, tuple[int, str]]:
        """By instance the number of its last claim, and who made it."""
        found = {index: max(numbers) for index, numbers in self._numbers().items()}
        owners = {index: (number, self._store.get(self._key(index, number))) for index, number in found.items()}
        return {index: (number, its) for index, (number, its) in owners.items() if its is not None}

    def _numbers(self) -> dict[int, list[int]]:
        numbers: dict[int, list[int]] = {}
        for key in self._store.keys(f"{self._app}/"):
            app, index, number = key.rsplit("/", 2)
            if app == self._app:
                numbers.setdefault(int(index), []).append(int(number))
        return numbers

    def _key(self, index: int, number: int) -> str:
        return f"{self._app}/{index}/{number}"
