"""How losses are noticed and what is done about them, without Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

import pytest

from asap_ray.actors import losses
from asap_ray.actors.losses import end_processes, process_ended
from asap_ray.actors.recovery import Recovery, Refused, Registered
from asap_ray.backends.node import node_name
from asap_ray.errors import DeviceLost, Unavailable
from asap_ray.messages import Registration, Registrations, encode

PATIENCE_S = 20.0
TURNS = 20
"""Of the event loop, by when an end is known to whoever watches for it."""

CHILD = "import os, sys; print(os.memfd_create('asap-moe-0'), flush=True); sys.stdin.read()"


def registration(pid: int, fd: int, epoch: int = 1, node: str = "") -> Registration:
    """Of a MoE device."""
    return Registration(
        role="moe", index=0, tp_rank=0, pid=pid, fd=fd, num_bytes=1, epoch=epoch, node=node, fingerprint={}
    )


@pytest.fixture
def device() -> Iterator[tuple[subprocess.Popen[str], Registration]]:
    """A process with a buffer, as far as its owner can see."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout
        yield child, registration(child.pid, int(child.stdout.readline()), node=node_name())
        child.kill()


def test_a_death_is_heard_of(device: tuple[subprocess.Popen[str], Registration]) -> None:
    """The kernel says so; nobody asks."""
    child, registered = device

    async def scenario() -> str:
        end = asyncio.create_task(process_ended(registered))
        await asyncio.sleep(0)
        child.kill()
        return await asyncio.wait_for(end, PATIENCE_S)

    assert asyncio.run(scenario()) == f"process {child.pid} ended"


def test_a_hung_process_is_ended_before_it_is_replaced(device: tuple[subprocess.Popen[str], Registration]) -> None:
    """Stopped, it would go on some day, in the middle of a reply."""
    child, registered = device
    os.kill(child.pid, signal.SIGSTOP)

    asyncio.run(asyncio.wait_for(end_processes([registered], 0.01), PATIENCE_S))

    assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_took_the_number_of_a_dead_one_lives(device: tuple[subprocess.Popen[str], Registration]) -> None:
    """It has no such buffer."""
    child, registered = device
    stranger = registration(child.pid, registered.fd + 1, node=registered.node)

    asyncio.run(asyncio.wait_for(end_processes([stranger], 0.01), PATIENCE_S))

    assert (child.poll(), asyncio.run(process_ended(stranger))) == (None, f"process {child.pid} ended")


class Fakes:
    """Devices that end when told to; Ray starts each again at once, under a new epoch, if it may."""

    def __init__(self, *names: str) -> None:
        self.registered = {name: (registration(0, 0),) for name in names}
        self.epochs = dict.fromkeys(names, 1)
        self.ends: dict[str, asyncio.Future[str]] = {}
        self.refusals: list[dict[str, str]] = []
        self.joins: list[set[str]] = []
        self.goes_with: dict[str, str] = {}
        self.starts_again = True

    def end(self, name: str, reason: str) -> None:
        """This device is lost now."""
        self.epochs[name] += self.starts_again
        self.ends[name].set_result(reason)

    async def call(self, name: str, method: str, _: float | None) -> Any:
        """See `Actors`."""
        if method == "register":
            if other := self.goes_with.pop(name, None):
                self.end(other, f"gone with {name}")
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            return encode(Registrations((registration(0, 0, self.epochs[name]),)))
        self.ends[name] = asyncio.get_running_loop().create_future()
        return await self.ends[name]

    async def state(self, _: str) -> str:
        """See `Actors`."""
        return "serving"

    async def be_patient(self, _: float) -> None:
        """See `Actors`."""

    async def join(self, names: Collection[str], registered: Registered) -> None:
        """See `Actors`."""
        self.registered |= registered
        self.joins.append(set(names))
        if self.refusals:
            refused = self.refusals.pop()
            for name in refused:
                self.epochs[name] += 1
            raise Refused("serve", refused)


async def take(changes: AsyncIterator[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """The next changes."""
    return [await asyncio.wait_for(anext(changes), PATIENCE_S) for _ in range(count)]


def watched(fakes: Fakes, patience_s: float = PATIENCE_S) -> AsyncIterator[tuple[str, str]]:
    """Changes, once device a is lost."""
    changes = Recovery(fakes, patience_s).watch(fakes.registered)

    async def all_changes() -> AsyncIterator[tuple[str, str]]:
        first = asyncio.ensure_future(anext(changes))
        while "a" not in fakes.ends:
            await asyncio.sleep(0)
        fakes.end("a", "gone")
        yield await first
        async for change in changes:
            yield change

    return all_changes()


def test_a_lost_device_is_joined_to_the_others() -> None:
    """It alone, under its new epoch."""

    async def scenario() -> tuple[list[tuple[str, str]], Fakes]:
        fakes = Fakes("a", "b")
        return await take(watched(fakes), 2), fakes

    changes, fakes = asyncio.run(scenario())
    assert changes == [("a", "gone"), ("a", "")]
    assert (fakes.joins, fakes.registered["a"][0].epoch, fakes.registered["b"][0].epoch) == ([{"a"}], 2, 1)


def test_who_is_lost_meanwhile_is_brought_back_too() -> None:
    """Device b refuses to hear of a's successor: both are joined then, and a is started once."""

    async def scenario() -> tuple[list[tuple[str, str]], Fakes]:
        fakes = Fakes("a", "b")
        fakes.refusals = [{"b": "gone too"}]
        return await take(watched(fakes), 4), fakes

    changes, fakes = asyncio.run(scenario())
    assert changes == [("a", "gone"), ("b", "gone too"), ("a", ""), ("b", "")]
    assert (fakes.joins, fakes.registered["a"][0].epoch) == ([{"a"}, {"a", "b"}], 2)


def test_devices_of_a_lost_node_are_joined_together() -> None:
    """Device b is heard of while a's successor starts: a is not joined to a b that is dead, on another host perhaps."""

    async def scenario() -> tuple[list[tuple[str, str]], Fakes]:
        fakes = Fakes("a", "b")
        fakes.goes_with["a"] = "b"
        return await take(watched(fakes), 4), fakes

    changes, fakes = asyncio.run(scenario())
    assert changes == [("a", "gone"), ("b", "gone with a"), ("a", ""), ("b", "")]
    assert (fakes.joins, fakes.epochs) == ([{"a", "b"}], {"a": 2, "b": 2})


def test_a_device_that_is_lost_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something kills it; the error says how often and in what time."""
    monkeypatch.setattr(losses, "MAX_RESTARTS", 2)

    async def scenario() -> None:
        fakes = Fakes("a")
        fakes.refusals = [{"a": "gone"}] * 2
        await take(watched(fakes), 10)

    with pytest.raises(DeviceLost, match=r"more than 2 times in 60 s: a$"):
        asyncio.run(scenario())


def test_a_device_that_does_not_come_back_is_given_up() -> None:
    """The old incarnation that still answers is not its own successor."""

    async def scenario() -> None:
        fakes = Fakes("a")
        fakes.starts_again = False
        await take(watched(fakes, patience_s=0.01), 2)

    with pytest.raises(Unavailable, match=r"not back within 0\.01 s"):
        asyncio.run(scenario())
