"""What a link between hosts costs beside shared memory, and what a barrier costs beside a link (4.4).

    python benchmarks/fabric.py [--quick] [--repeats N] [--json FILE]

A round trip: one attention process dispatches tokens to one MoE process, which sends them back. `shm` is shared
memory; `nixl` is NIXL with whatever UCX takes on this machine (its own shared memory), `tcp` is NIXL over TCP, and
`tcp + N us` holds every note back for N us more: this kernel has no netem. Kinds take turns within each repetition.

A layer: two groups whose attention takes 1 ms and 8 ms, experts of 0.5 ms, all of it slept, so that cores do not
matter. `sync` meets at a barrier before and after the experts of each layer, over shared memory; `async` does not
meet, over links. It shows the group that is done early.

--quick: two sizes, few laps; under a minute.
"""

# Shapes: S tokens, H hidden.

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing as mp
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import numpy as np

from asap_ray import _native
from asap_ray.backends.fabric import FabricPorts
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.nixl_link import NixlLink
from asap_ray.layout import Layout, layout_of
from asap_ray.messages import Registration
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType

HIDDEN: Final = 7168
MAX_TOKENS: Final = 2048
SIZES: Final = (1, 16, 128, 512, 2048)
DEADLINE_S: Final = 60.0
ATTENTION_S: Final = (1e-3, 8e-3)
EXPERTS_S: Final = 0.5e-3


@dataclasses.dataclass(frozen=True)
class Kind:
    """How rows travel."""

    name: str
    transports: str = ""  # of UCX; empty: no link
    delay_s: float = 0.0


SHM: Final = Kind("shm")
TCP: Final = Kind("tcp", "tcp")
KINDS: Final = (SHM, Kind("nixl", "all"), TCP, *(Kind(f"tcp + {us} us", "tcp", us / 1e6) for us in (100, 300, 1000)))


class DelayedLink(NixlLink):
    """Notes come later than they do."""

    def __init__(self, name: str, buffer: _native.SharedBuffer, delay_s: float) -> None:
        super().__init__(name, buffer)
        self._delay_s = delay_s
        self._held: deque[tuple[float, tuple[str, bytes]]] = deque()

    @property
    def is_writing(self) -> bool:
        """Also while something is held: whoever carries must not sleep."""
        return bool(self._held) or super().is_writing

    def poll(self) -> Iterator[tuple[str, bytes]]:
        """See `NixlLink`."""
        now = time.monotonic()
        self._held.extend((now + self._delay_s, each) for each in super().poll())
        while self._held and self._held[0][0] <= now:
            yield self._held.popleft()[1]


class DelayedPorts(FabricPorts):
    """All peers are far."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(is_near=lambda _: False)
        self._delay_s = delay_s

    def create(self, name: str, num_bytes: int) -> _native.SharedBuffer:
        """See `Ports`."""
        buffer = _native.SharedBuffer.create(name, num_bytes)
        self._link = DelayedLink(name, buffer, self._delay_s)
        return buffer


def geometry(num_groups: int) -> Layout:
    """So many ranks, and one device with one expert."""
    limits = PrefillSpec(
        max_tokens=2 * MAX_TOKENS, solo_tokens=MAX_TOKENS, inflection_tokens=1, row_type=RowType.BFLOAT16
    )
    model = ModelSpec(num_layers=1, hidden=HIDDEN, num_experts=1, top_k=1)
    return layout_of(
        Instance(model=model, parallel=ParallelSpec(dp_groups=num_groups, tp=1, moe_devices=1), prefill=limits)
    )


def registered(kind: Kind, role: str, index: int, num_bytes: int) -> tuple[HostPorts, Any, Registration]:
    """A device's ports, its buffer, and where that is."""
    if kind.transports:
        os.environ["UCX_TLS"] = kind.transports
    ports = DelayedPorts(kind.delay_s) if kind.transports else HostPorts()
    buffer = ports.create(f"{role}-{index}", num_bytes)
    where = {"role": role, "index": index, "tp_rank": 0, "epoch": 1, "node": "bench", "fingerprint": {}}
    return ports, buffer, Registration(**where, **ports.address(buffer))


def device(pipe: Connection, kind: Kind, num_groups: int, seconds: float) -> None:
    """Sends back what comes, after so long."""
    layout = geometry(num_groups)
    ports, buffer, mine = registered(kind, "moe", 0, layout.moe_bytes)
    pipe.send(mine)
    ranks = pipe.recv()
    types = {"row_type": RowType.BFLOAT16, "compute_type": RowType.BFLOAT16, "combine": "reduced"}
    comm = ports.moe(
        layout=_native.Layout(**dataclasses.asdict(layout)),
        buffer=buffer,
        attention_buffers=[[ports.open(rank)] for rank in ranks],
        moe_device=0,
        epochs=[1] * num_groups,
        **types,
    )
    pipe.send("joined")
    while True:
        item = comm.async_dispatch_recv(DEADLINE_S)
        time.sleep(seconds)
        comm.async_combine_send(item, item.rows)


def rank(pipe: Connection, kind: Kind, num_groups: int, index: int, barrier: Barrier | None) -> None:
    """Plays as many laps as it is asked for, of so many tokens and seconds of attention; answers with their times."""
    layout = geometry(num_groups)
    ports, buffer, mine = registered(kind, "attention", index, layout.attention_bytes)
    pipe.send(mine)
    (moe,) = pipe.recv()
    comm = ports.attention(
        layout=_native.Layout(**dataclasses.asdict(layout)),
        buffer=buffer,
        moe_buffers=[ports.open(moe)],
        expert_of_place=range(layout.num_experts),
        dp_group=index,
        tp_rank=0,
        epoch=1,
        row_type=RowType.BFLOAT16,
        combine="reduced",
    )
    pipe.send("joined")
    while True:
        num_tokens, num_laps, seconds = pipe.recv()
        rows_SH, out_SH = (np.zeros((num_tokens, HIDDEN), np.uint16) for _ in range(2))
        ids_SK, weights_SK = np.zeros((num_tokens, 1), np.int32), np.ones((num_tokens, 1), np.float32)
        times_s = []
        for _ in range(num_laps):
            began_s = time.monotonic()
            time.sleep(seconds)
            if barrier:
                barrier.wait(DEADLINE_S)
            comm.async_dispatch_send(0, 0, rows_SH, ids_SK, weights_SK, DEADLINE_S)
            comm.async_combine_recv(0, out_SH, DEADLINE_S)
            if barrier:
                barrier.wait(DEADLINE_S)
            times_s.append(time.monotonic() - began_s)
        pipe.send(times_s)


class World:
    """The processes of one kind, joined."""

    def __init__(self, kind: Kind, num_groups: int = 1, experts_s: float = 0.0, has_barrier: bool = False) -> None:
        fork = mp.get_context("fork")  # imports are dear, and nothing here has a thread yet
        barrier = fork.Barrier(num_groups) if has_barrier else None
        pairs = [fork.Pipe() for _ in range(1 + num_groups)]
        moe, *self.ranks = [ours for ours, _ in pairs]
        theirs = [each for _, each in pairs]
        self._processes = [fork.Process(target=device, args=(theirs[0], kind, num_groups, experts_s), daemon=True)]
        for i in range(num_groups):
            args = (theirs[1 + i], kind, num_groups, i, barrier)
            self._processes.append(fork.Process(target=rank, args=args, daemon=True))
        for process in self._processes:
            process.start()
        where = [pipe.recv() for pipe in (moe, *self.ranks)]
        moe.send(where[1:])
        moe.recv()
        for pipe in self.ranks:
            pipe.send(where[:1])
            pipe.recv()

    def play(self, num_tokens: int, num_laps: int, attention_s: tuple[float, ...] = (0.0,)) -> list[list[float]]:
        """Seconds of every lap, by rank."""
        for pipe, seconds in zip(self.ranks, attention_s, strict=True):
            pipe.send((num_tokens, num_laps, seconds))
        return [pipe.recv() for pipe in self.ranks]

    def close(self) -> None:
        """End its processes."""
        for process in self._processes:
            process.kill()
            process.join()


def trips(repeats: int, laps: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each size, kind and repetition: the median round trip."""
    worlds = {kind.name: World(kind) for kind in KINDS}
    rows = []
    for world in worlds.values():
        world.play(sizes[-1], 3)  # pages, connections
    for repeat in range(repeats):
        for size in sizes:
            for name, world in worlds.items():
                (times_s,) = world.play(size, laps)
                rows.append({"tokens": size, "kind": name, "repeat": repeat, "us": 1e6 * statistics.median(times_s)})
    for world in worlds.values():
        world.close()
    return rows


def layers(repeats: int, num_layers: int) -> list[dict[str, Any]]:
    """A row for each system and repetition: milliseconds a layer of the group that is done early."""
    systems = {"sync, shm": World(SHM, 2, EXPERTS_S, has_barrier=True)}
    systems |= {f"async, {kind.name}": World(kind, 2, EXPERTS_S) for kind in KINDS if kind.transports != "all"}
    rows = []
    for repeat in range(-1, repeats):
        for name, world in systems.items():
            early_s, _ = world.play(16, num_layers, ATTENTION_S)
            if repeat >= 0:
                rows.append({"system": name, "repeat": repeat, "ms": 1e3 * statistics.fmean(early_s)})
    for world in systems.values():
        world.close()
    return rows


def spread(values: list[float], digits: int) -> str:
    """The median, and the range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, few laps; under a minute")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="repetitions of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows go to this file")
    options = parser.parse_args()
    repeats, laps, sizes = (2, 5, (16, 512)) if options.quick else (options.repeats, 21, SIZES)
    found = trips(repeats, laps, sizes)
    print(f"| tokens x {HIDDEN} | {', us | '.join(kind.name for kind in KINDS)}, us |")
    print("|---|" + "---|" * len(KINDS))
    for size in sizes:
        cells = [[row["us"] for row in found if (row["tokens"], row["kind"]) == (size, kind.name)] for kind in KINDS]
        print(f"| {size} | {' | '.join(spread(cell, 0) for cell in cells)} |")
    passes = layers(repeats, 10 if options.quick else 61)
    print("\n| system | early group, ms a layer |\n|---|---|")
    for system in dict.fromkeys(row["system"] for row in passes):
        print(f"| {system} | {spread([row['ms'] for row in passes if row['system'] == system], 2)} |")
    if options.json:
        options.json.write_text(json.dumps([row | {"number": "measured"} for row in found + passes], indent=1))


if __name__ == "__main__":
    main()
