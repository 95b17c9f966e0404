"""Whoever asks devices how busy they are does not hold up the frontend."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from ray.exceptions import RayActorError

from asap_ray.actors.duty import Devices
from asap_ray.actors.stragglers import watch_stragglers
from asap_ray.batch import Duty
from asap_ray.messages import encode


class Device:
    """A handle of an actor that answers `duty.remote()`."""

    def __init__(self, is_dead: bool = False) -> None:
        self.duty = self
        self._is_dead = is_dead

    async def remote(self) -> bytes:
        """Its totals, or Ray's word that it is gone."""
        if self._is_dead:
            raise RayActorError
        return encode(Duty(1.0, 2, 3))


class ControlStore:
    """Knows two devices; counts who was looked up, and on which threads."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles
        self.found: list[str] = []
        self.threads: set[threading.Thread] = set()

    def names(self) -> list[str]:
        """As Ray lists them: one of them is not there any more."""
        self.threads.add(threading.current_thread())
        return ["asap:moe:0", "asap:moe:1"]

    def find(self, name: str) -> Any:
        """As `ray.get_actor`."""
        self.threads.add(threading.current_thread())
        self.found.append(name)
        if name == "asap:moe:1":
            raise ValueError(name)
        return self._handles.pop()


def test_the_control_store_is_asked_in_a_thread() -> None:
    """Its calls block; the loop serves clients meanwhile."""
    store = ControlStore([Device()])

    assert asyncio.run(Devices(store.names, store.find).duty()) == {"asap:moe:0": Duty(1.0, 2, 3)}
    assert threading.current_thread() not in store.threads


def test_a_device_that_answers_is_found_once() -> None:
    """Its handle is good as long as it lives."""
    store = ControlStore([Device()])
    devices = Devices(store.names, store.find)
    for _ in range(3):
        asyncio.run(devices.duty())

    assert store.found.count("asap:moe:0") == 1


def test_a_device_that_is_gone_is_found_anew() -> None:
    """Another one may have its name by now."""
    store = ControlStore([Device(), Device(is_dead=True)])
    devices = Devices(store.names, store.find)
    answers = [asyncio.run(devices.duty()) for _ in range(2)]

    assert answers == [{}, {"asap:moe:0": Duty(1.0, 2, 3)}]


def test_one_error_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the next look is another one."""
    monkeypatch.setattr("asap_ray.actors.stragglers.LOOK_S", 0.0)
    reported: asyncio.Queue[str] = asyncio.Queue()
    looks = iter([RuntimeError("not now"), {"asap:moe:0": Duty.zero()}])

    async def duty() -> dict[str, Duty]:
        look = next(looks, {})
        if isinstance(look, Exception):
            raise look
        return look

    async def scenario() -> str:
        watching = asyncio.create_task(watch_stragglers(duty, lambda name, _: reported.put_nowait(name)))
        try:
            return await asyncio.wait_for(reported.get(), 10)
        finally:
            watching.cancel()

    assert asyncio.run(scenario()) == "asap:moe:0"
