"""Devices that die, fail or hang are replaced one by one, while the others serve (ADR 0007)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any, Final, Protocol

from asap_ray.actors import losses
from asap_ray.actors.losses import Losses, end_processes, is_here, process_ended
from asap_ray.errors import DeviceLost, Unavailable
from asap_ray.messages import Registration, Registrations, decode

WATCH_S: Final = 1.0
POLL_S: Final = 0.05

ANSWER_S: Final = 10.0
"""A device that does not answer a control call for this long is taken for lost."""

_log = logging.getLogger(__name__)

Registered = Mapping[str, tuple[Registration, ...]]


class Actors(Protocol):
    """The devices of one instance by name, as `PrefillInstance` has them."""

    registered: dict[str, tuple[Registration, ...]]  # where the buffers of each are, rank by rank

    async def call(self, name: str, method: str, timeout_s: float | None) -> Any:
        """What a method without arguments answers, or why it did not."""

    async def state(self, name: str) -> str:
        """`serving`, or anything else; renews its lease."""

    async def be_patient(self, seconds: float) -> None:
        """Devices are being replaced: who waits for them goes on waiting, up to so long."""

    async def join(self, names: Collection[str], registered: Registered) -> None:
        """Join devices to each other and to all others; `Refused` if not all did as asked."""


class Refused(Unavailable):
    """Some actors did not do what they were asked; `reasons` by name."""

    def __init__(self, method: str, reasons: Mapping[str, str]) -> None:
        super().__init__(f"{method}: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        self.reasons = reasons


class Recovery:
    """Watches the devices of one instance and brings back those that are lost; Ray starts them again."""

    def __init__(self, actors: Actors, patience_s: float) -> None:
        """A device must be back within `patience_s`."""
        self._actors = actors
        self._patience_s = patience_s
        self._losses = Losses(self._end_of)
        self.absent: dict[str, str] = {}  # who is being brought back, and why

    def report(self, name: str, reason: str) -> None:
        """Somebody who uses a device says that it failed."""
        self._losses.report(name, reason)

    async def watch(self, names: Iterable[str]) -> AsyncIterator[tuple[str, str]]:
        """Each loss with its reason, and an empty reason when the device is back; ends with an error only.

        Raises:
            DeviceLost: a device was lost too often.
            Unavailable: one did not come back in time.
        """
        self._losses.watch(names)
        try:
            while True:
                async for change in self._bring_back(await self._losses.next()):
                    yield change
        finally:
            self._losses.close()

    async def _bring_back(self, lost: Mapping[str, str]) -> AsyncIterator[tuple[str, str]]:
        """Until everybody serves: more may be lost meanwhile."""
        registered: dict[str, tuple[Registration, ...]] = {}
        while lost:
            self.absent |= lost
            for name, reason in lost.items():
                _log.warning("lost: %s (%s)", name, reason)
                yield name, reason
            if hopeless := self._losses.drop(lost):
                raise DeviceLost(
                    f"more than {losses.MAX_RESTARTS} times in {losses.RESTARTS_S:g} s: {', '.join(hopeless)}"
                )
            try:
                registered |= await self._successors(lost)
                if not (lost := self._losses.now):  # else, of a node that goes, somebody would be joined to the dead
                    await self._actors.join(self.absent, registered)
            except Refused as refused:
                lost = {**self._losses.now, **refused.reasons}
        back, self.absent = self.absent, {}
        self._losses.watch(back)
        for name in back:
            yield name, ""

    async def _successors(self, lost: Iterable[str]) -> dict[str, tuple[Registration, ...]]:
        """End what is left of lost devices and wait for Ray to start them again; where they are now."""
        names = list(lost)
        telling = asyncio.create_task(self._actors.be_patient(self._patience_s))
        try:
            async with asyncio.timeout(self._patience_s):
                registered = await asyncio.gather(*map(self._successor, names))
                await telling
                return dict(zip(names, registered, strict=True))
        except TimeoutError:
            raise Unavailable(f"not back within {self._patience_s:g} s") from None
        finally:
            telling.cancel()

    async def _successor(self, name: str) -> tuple[Registration, ...]:
        dead = self._actors.registered[name]
        await end_processes(dead, POLL_S)
        while True:
            reply = await self._actors.call(name, "register", self._patience_s)
            if isinstance(reply, bytes):
                registered = decode(Registrations, reply).devices
                if registered[0].epoch != dead[0].epoch:
                    return registered
            await asyncio.sleep(POLL_S)

    async def _end_of(self, name: str) -> str:
        """Wait until a device does not serve any more; why. Renews its lease meanwhile."""
        ends = [asyncio.ensure_future(self._actors.call(name, "ended", None))]
        ends += [asyncio.ensure_future(process_ended(rank)) for rank in self._actors.registered[name] if is_here(rank)]
        state = asyncio.ensure_future(self._actors.state(name))
        try:
            while True:
                done, _ = await asyncio.wait({*ends, state}, return_when=asyncio.FIRST_COMPLETED)
                for end in done - {state}:
                    return str(end.result())
                if state.result() != "serving":
                    return state.result()
                await asyncio.wait(ends, timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
                state = asyncio.ensure_future(self._actors.state(name))
        finally:
            for each in (*ends, state):
                each.cancel()
