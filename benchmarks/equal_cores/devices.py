"""The processes of a system under test: started together, joined by their registrations, none outlives the fleet."""

from __future__ import annotations

import multiprocessing as mp
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol

from asap_ray.backends.door import Door
from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host import HostAttention, HostMoE
from asap_ray.backends.host_lockstep import HostLockstep, StepPipe
from asap_ray.batch import Batch, Duty, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from asap_ray.messages import Events, Registration, Registrations, decode, encode
from asap_ray.models.model import load_model

START_S: Final = 120.0
STOP_S: Final = 10.0


class Device(Protocol):
    """One process's part of a system."""

    @property
    def duty(self) -> Duty:
        """Totals of its compute stream."""

    def registrations(self) -> tuple[Registration, ...]:
        """Where peers find its buffers."""

    def connect(self, ranks: Sequence[Registration], devices: Sequence[Registration]) -> None:
        """Open the buffers of its peers."""

    def serve(self, pipe: Connection) -> None:
        """Run the loop until `close`; work comes through the pipe, tokens go back."""

    def close(self) -> None:
        """End the loop."""


class Attention:
    """DP group i of the asynchronous engine."""

    def __init__(self, config: ServeConfig, index: int) -> None:
        self._prefill = config.prefill
        self._host = HostAttention(config, load_model(config.model), index, SoloCollective(), time.time_ns())
        self.duty = self._host.duty

    def registrations(self) -> tuple[Registration, ...]:
        """See `Device`."""
        return (self._host.registration({}),)

    def connect(self, ranks: Sequence[Registration], devices: Sequence[Registration]) -> None:  # noqa: ARG002
        """See `Device`."""
        self._host.connect(devices)

    def serve(self, pipe: Connection) -> None:
        """See `Device`; a batch comes back as its first request's name and past tokens, and its events."""

        def deliver(batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
            first = batch.requests[0]
            pipe.send((first.request_id, first.past_tokens, encode(Events(tokens, stamps))))

        door = Door(self._host.runtime, self._prefill, deliver)

        def fill() -> None:
            with suppress(EOFError, OSError):
                while True:
                    door.put(decode(Batch, pipe.recv_bytes()))

        threading.Thread(target=fill, daemon=True).start()
        self._host.serve(door)

    def close(self) -> None:
        """See `Device`."""
        self._host.runtime.close()


class MoE:
    """MoE device e of the asynchronous engine."""

    def __init__(self, config: ServeConfig, index: int) -> None:
        self._host = HostMoE(config, load_model(config.model), index)
        self.duty = self._host.duty

    def registrations(self) -> tuple[Registration, ...]:
        """See `Device`."""
        return (self._host.registration({}),)

    def connect(self, ranks: Sequence[Registration], devices: Sequence[Registration]) -> None:  # noqa: ARG002
        """See `Device`."""
        self._host.connect(ranks)

    def serve(self, pipe: Connection) -> None:  # noqa: ARG002
        """See `Device`; its work comes through its buffer."""
        self._host.serve()

    def close(self) -> None:
        """See `Device`."""
        self._host.runtime.close()


class Lockstep:
    """Collocated worker i of a synchronous system."""

    def __init__(self, config: ServeConfig, index: int) -> None:
        self._host = HostLockstep(config, load_model(config.model), index)
        self.duty = self._host.duty

    def registrations(self) -> tuple[Registration, ...]:
        """See `Device`."""
        return self._host.registrations({})

    def connect(self, ranks: Sequence[Registration], devices: Sequence[Registration]) -> None:
        """See `Device`."""
        self._host.connect(ranks, devices)

    def serve(self, pipe: Connection) -> None:
        """See `Device`; steps come through the pipe."""
        self._host.serve(StepPipe(pipe))

    def close(self) -> None:
        """See `Device`."""
        self._host.runtime.close()


@dataclass(frozen=True, slots=True)
class Place:
    """One process of a fleet."""

    kind: type[Any]  # of the above
    index: int  # i or e
    core: int | None  # None: any


def device_process(config: bytes, place: Place, control: Connection, work: Connection) -> None:
    """What a process of the fleet does until its control pipe closes."""
    if place.core is not None:
        os.sched_setaffinity(0, {place.core})
    device: Device = place.kind(decode(ServeConfig, config), place.index)
    with suppress(EOFError, OSError):
        control.send_bytes(encode(Registrations(device.registrations())))
        peers = decode(Registrations, control.recv_bytes()).devices
        by_role = {role: [peer for peer in peers if peer.role == role] for role in ("attention", "moe")}
        device.connect(by_role["attention"], by_role["moe"])

        def serve() -> None:
            try:
                device.serve(work)
            finally:
                work.close()  # the driver hears of it

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with suppress(EOFError, OSError):
            while True:
                control.send_bytes(encode(device.duty))
                control.recv_bytes()
        device.close()
        serving.join(STOP_S)


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as clock_getcpuclockid(3) numbers it."""
    return ~pid << 3 | 2


class Fleet:
    """All processes of one system."""

    def __init__(self, config: ServeConfig, places: Sequence[Place]) -> None:
        """Start them and wait until every one serves.

        Raises:
            DeviceLost: names the process that ended or is late.
        """
        context = mp.get_context("spawn")
        self._places = places
        self._processes: list[BaseProcess] = []
        self._controls: list[Connection] = []
        self.pipes: list[Connection] = []
        for place in places:
            control, its_control = context.Pipe()
            pipe, its_pipe = context.Pipe()
            process = context.Process(target=device_process, args=(encode(config), place, its_control, its_pipe))
            process.daemon = True
            process.start()
            its_control.close()
            its_pipe.close()
            self._processes.append(process)
            self._controls.append(control)
            self.pipes.append(pipe)
        registered = [decode(Registrations, reply).devices for reply in self._replies(START_S)]
        everyone = encode(Registrations(tuple(each for devices in registered for each in devices)))
        for control in self._controls:
            control.send_bytes(everyone)
        self._replies(START_S)

    def duty_s(self) -> float:
        """Seconds all compute streams have computed so far."""
        for control in self._controls:
            control.send_bytes(b"?")
        return sum(decode(Duty, reply).compute_s for reply in self._replies(STOP_S))

    def cpu_s(self) -> float:
        """CPU seconds all processes have used so far."""
        return sum(time.clock_gettime(_cpu_clock(process.pid or 0)) for process in self._processes)

    def name_of(self, pipe: Connection) -> str:
        """Whose pipe it is."""
        place = self._places[self.pipes.index(pipe)]
        return f"{place.kind.__name__} {place.index}"

    def stop(self) -> None:
        """End every process."""
        for control in self._controls:
            control.close()
        for process in self._processes:
            process.join(STOP_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _replies(self, timeout_s: float) -> list[bytes]:
        deadline_s = time.monotonic() + timeout_s
        replies = []
        for control, pipe in zip(self._controls, self.pipes, strict=True):
            if not wait([control], deadline_s - time.monotonic()):
                raise DeviceLost(f"{self.name_of(pipe)} has not answered within {timeout_s:g} s")
            try:
                replies.append(control.recv_bytes())
            except EOFError:
                raise DeviceLost(f"{self.name_of(pipe)} ended; its own output says why") from None
        return replies
