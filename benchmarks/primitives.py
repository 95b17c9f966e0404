"""Dispatch and combine between one attention rank and two MoE devices, beside what else could carry the rows.

Every device is a process. Each token goes to both devices and comes back from both, so a dispatch
moves 2 * S rows, and a round trip 4 * S. Experts are the identity: nothing is computed but the sum.

    async   the four primitives over shared memory
    memcpy  np.copyto of as many bytes into shared memory, one thread of the attention process
    gloo    torch.distributed send/recv, one peer after the other, each acknowledged (5.4)
    ray     ray.put and an actor call per device, the results through the object store

    write       async and memcpy: the send alone, while no receiver runs; its bandwidth
    dispatch    async: until the bits are set, receivers running; gloo, ray: until all have acknowledged
    round_trip  until the sums lie in private memory

All transports take turns within each repeat; the table shows medians and the range.
"""

# Shapes: S tokens, H hidden.

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from asap_ray import _native
from asap_ray.layout import layout_of
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType

NUM_DEVICES: Final = 2
DEADLINE_S: Final = 60.0
IDLE_S: Final = 3.0
SIZES: Final = [(s, 7168) for s in (128, 256, 512, 1024, 2048, 4096, 8192)] + [
    (s, h) for h in (512, 2048) for s in (128, 1024, 8192)
]
QUICK_SIZES: Final = [(128, 7168), (1024, 7168), (4096, 7168), (1024, 512), (1024, 2048)]

Lap = dict[str, float]  # seconds by phase
PHASE_DISPATCHES: Final = {"write": 1, "dispatch": 1, "round_trip": 2}


def instance_of(num_tokens: int, hidden: int) -> Instance:
    """One rank, two devices with an expert each, slots of `num_tokens` rows."""
    return Instance(
        model=ModelSpec(num_layers=1, hidden=hidden, num_experts=NUM_DEVICES, top_k=NUM_DEVICES),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=NUM_DEVICES),
        prefill=PrefillSpec(
            max_tokens=2 * num_tokens,
            solo_tokens=num_tokens,
            inflection_tokens=1,
            row_type=RowType.BFLOAT16,
        ),
    )


def native_layout(instance: Instance) -> _native.Layout:
    """The layout as native code takes it."""
    return _native.Layout(**dataclasses.asdict(layout_of(instance)))


def device_process(e: int, commands: Connection, store_path: str) -> None:
    """MoE device e: it does what it is told, then waits for the next word."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store_path}", rank=e + 1, world_size=NUM_DEVICES + 1)
    while (command := commands.recv()) is not None:
        name, *args = command
        if name == "create":
            size = args[0]
            layout = layout_of(instance_of(*size))
            buffer = _native.SharedBuffer.create(f"bench-moe-{e}", layout.moe_bytes)
            received = torch.zeros(size, dtype=torch.bfloat16)
            commands.send((buffer.pid, buffer.fd))
        elif name == "open":
            pid, fd = args[0]
            attention = _native.SharedBuffer.open(pid, fd, layout.attention_bytes)
            comm = _native.MoEComm(
                native_layout(instance_of(*size)), buffer, [[attention]], e, [1], "bfloat16", "bfloat16", "reduced"
            )
            commands.send(None)
        elif name == "async":
            for _ in range(args[0]):
                item = comm.async_dispatch_recv(DEADLINE_S)
                comm.async_combine_send(item, item.rows)
                del item
        elif name == "gloo":
            for _ in range(args[0]):
                serve_gloo(received)
    dist.destroy_process_group()


def serve_gloo(received_SH: torch.Tensor) -> None:
    """Be told how many rows come, take them, acknowledge, send them back."""
    num_rows = torch.zeros(1, dtype=torch.int64)
    dist.recv(num_rows, 0)
    dist.recv(received_SH[: num_rows.item()], 0)
    dist.send(num_rows, 0)
    dist.send(received_SH[: num_rows.item()], 0)


class Devices:
    """The MoE processes, seen from the attention process."""

    def __init__(self, store_path: str) -> None:
        context = mp.get_context("spawn")
        pipes = [context.Pipe() for _ in range(NUM_DEVICES)]
        self.connections = [mine for mine, _ in pipes]
        self.processes = [
            context.Process(target=device_process, args=(e, theirs, store_path), daemon=True)
            for e, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def tell(self, *command: Any) -> None:
        """Send one command to all."""
        for connection in self.connections:
            connection.send(command)

    def ask(self, *command: Any) -> list[Any]:
        """Send one command to all and collect their answers."""
        self.tell(*command)
        return [connection.recv() for connection in self.connections]

    def stop(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join()


class Bench:
    """One size: every transport, ready to run a lap."""

    def __init__(self, devices: Devices, size: tuple[int, int]) -> None:
        self.devices = devices
        self.num_tokens, self.hidden = size
        instance = instance_of(*size)
        layout = layout_of(instance)
        self.buffer = _native.SharedBuffer.create("bench-attention", layout.attention_bytes)
        places = devices.ask("create", size)
        moe_buffers = [_native.SharedBuffer.open(pid, fd, layout.moe_bytes) for pid, fd in places]
        devices.ask("open", (self.buffer.pid, self.buffer.fd))
        experts = instance.placed.expert_of_place
        self.comm = _native.AttentionComm(
            native_layout(instance), self.buffer, moe_buffers, experts, 0, 0, 1, "bfloat16", "reduced"
        )
        self.hidden_SH = torch.randn(size).to(torch.bfloat16)
        self.rows_SH: NDArray[np.uint16] = self.hidden_SH.view(torch.uint16).numpy()
        self.ids_SK = np.tile(np.arange(NUM_DEVICES, dtype=np.int32), (self.num_tokens, 1))
        self.weights_SK = np.full((self.num_tokens, NUM_DEVICES), 0.5, dtype=np.float32)
        self.out_SH = torch.zeros(size, dtype=torch.bfloat16)
        self.results_SH = [torch.zeros(size, dtype=torch.bfloat16) for _ in range(NUM_DEVICES)]
        self.copy_buffer = _native.SharedBuffer.create("bench-memcpy", NUM_DEVICES * self.rows_SH.nbytes)
        self.copies = np.frombuffer(memoryview(self.copy_buffer), np.uint16).reshape(NUM_DEVICES, *size)

    @property
    def dispatch_bytes(self) -> int:
        """Bytes of rows that leave the attention rank."""
        return NUM_DEVICES * self.rows_SH.nbytes

    def send(self) -> None:
        """One dispatch of all tokens in slot 0."""
        self.comm.async_dispatch_send(0, 0, self.rows_SH, self.ids_SK, self.weights_SK, DEADLINE_S)

    def receive(self) -> None:
        """The sums of the last dispatch."""
        self.comm.async_combine_recv(0, self.out_SH.view(torch.uint16).numpy(), DEADLINE_S)

    def lap_write(self) -> float:
        """A send whose receivers only start when it is over."""
        began_s = time.perf_counter()
        self.send()
        sent_s = time.perf_counter()
        self.devices.tell("async", 1)
        self.receive()
        return sent_s - began_s

    def lap_async(self) -> Lap:
        """Receivers take the rows as they arrive."""
        began_s = time.perf_counter()
        self.send()
        sent_s = time.perf_counter()
        self.receive()
        return {"dispatch": sent_s - began_s, "round_trip": time.perf_counter() - began_s}

    def lap_memcpy(self) -> Lap:
        """The same bytes out, and as many back."""
        began_s = time.perf_counter()
        for copy in self.copies:
            np.copyto(copy, self.rows_SH)
        sent_s = time.perf_counter()
        for copy, result in zip(self.copies, self.results_SH, strict=True):
            np.copyto(result.view(torch.uint16).numpy(), copy)
        return {"write": sent_s - began_s, "round_trip": time.perf_counter() - began_s}

    def lap_gloo(self) -> Lap:
        """Device after device, as synchronous point-to-point must (5.4)."""
        num_rows = torch.tensor([self.num_tokens])
        began_s = time.perf_counter()
        for e in range(NUM_DEVICES):
            dist.send(num_rows, e + 1)
            dist.send(self.hidden_SH, e + 1)
            dist.recv(num_rows, e + 1)
        sent_s = time.perf_counter()
        for e in range(NUM_DEVICES):
            dist.recv(self.results_SH[e], e + 1)
        torch.add(*self.results_SH, out=self.out_SH)
        return {"dispatch": sent_s - began_s, "round_trip": time.perf_counter() - began_s}

    def lap(self, transport: str) -> Lap:
        """One unmeasured lap brings the processes together, then the measured one."""
        run: dict[str, Callable[[], Lap]] = {
            "async": self.lap_async,
            "memcpy": self.lap_memcpy,
            "gloo": self.lap_gloo,
        }
        if transport != "memcpy":
            self.devices.tell(transport, 2)
        run[transport]()
        timed = run[transport]()
        if transport == "async":
            timed["write"] = self.lap_write()
        return timed


class RayBench:
    """The same rows through Ray's object store, from an attention actor to two MoE actors."""

    def __init__(self) -> None:
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(
            num_cpus=NUM_DEVICES + 1,
            include_dashboard=False,
            object_store_memory=2 * 1024**3,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        remote: Any = ray.remote
        devices = [remote(RayDevice).remote() for _ in range(NUM_DEVICES)]
        self.attention = remote(RayAttention).remote(devices)

    def lap(self, num_tokens: int, hidden: int) -> Lap:
        """One lap, timed inside the attention actor."""
        lap: Lap = ray.get(self.attention.lap.remote(num_tokens, hidden))
        return lap

    def stop(self) -> None:
        """Stop the cluster."""
        ray.shutdown()


class RayDevice:
    """A MoE device that knows only the object store."""

    def take(self, rows_SH: NDArray[np.uint16]) -> int:
        """Acknowledge the rows, which are mapped, not copied."""
        self.rows_SH = rows_SH
        return len(rows_SH)

    def results(self) -> NDArray[np.uint16]:
        """Send them back."""
        return self.rows_SH


class RayAttention:
    """An attention rank that knows only the object store."""

    def __init__(self, devices: list[Any]) -> None:
        torch.set_num_threads(1)
        self.devices = devices

    def lap(self, num_tokens: int, hidden: int) -> Lap:
        """One unmeasured lap, then the measured one."""
        rows_SH = np.zeros((num_tokens, hidden), dtype=np.uint16)
        out_SH = torch.zeros((num_tokens, hidden), dtype=torch.bfloat16)
        self._lap(rows_SH, out_SH)
        return self._lap(rows_SH, out_SH)

    def _lap(self, rows_SH: NDArray[np.uint16], out_SH: torch.Tensor) -> Lap:
        began_s = time.perf_counter()
        ray.get([device.take.remote(ray.put(rows_SH)) for device in self.devices])
        sent_s = time.perf_counter()
        results = ray.get([device.results.remote() for device in self.devices])
        torch.add(*(torch.from_numpy(r).view(torch.bfloat16) for r in results), out=out_SH)
        return {"dispatch": sent_s - began_s, "round_trip": time.perf_counter() - began_s}


def idle_share(devices: Devices, bench: Bench) -> float:
    """CPU time over wall time of one MoE device process that waits for a message."""
    devices.tell("async", 2)
    bench.lap_async()
    pid = devices.processes[0].pid

    def cpu_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(0.5)
    before_s = cpu_s()
    time.sleep(IDLE_S)
    share = (cpu_s() - before_s) / IDLE_S
    bench.lap_async()
    return share


def rows_of(size: tuple[int, int], num_bytes: int, laps: dict[str, list[Lap]]) -> list[dict[str, Any]]:
    """The JSON rows of one size."""
    rows = []
    for transport, timed in laps.items():
        for phase in timed[0]:
            seconds = [lap[phase] for lap in timed]
            median_s = statistics.median(seconds)
            rows.append(
                {
                    "tokens": size[0],
                    "hidden": size[1],
                    "transport": transport,
                    "phase": phase,
                    "seconds": median_s,
                    "seconds_min": min(seconds),
                    "seconds_max": max(seconds),
                    "bytes_per_second": PHASE_DISPATCHES[phase] * num_bytes / median_s,
                }
            )
    return sorted(rows, key=lambda row: list(PHASE_DISPATCHES).index(row["phase"]))


def print_size(size: tuple[int, int], num_bytes: int, rows: list[dict[str, Any]]) -> None:
    """One block of the table."""
    print(f"\n{size[0]} tokens x {size[1]} bfloat16, {num_bytes / 1e6:.1f} MB a dispatch")
    own = {row["phase"]: row["seconds"] for row in rows if row["transport"] == "async"}
    for row in rows:
        ratio = row["seconds"] / own[row["phase"]]
        print(
            f"  {row['phase']:<10} {row['transport']:<7}{1e3 * row['seconds']:9.3f} ms"
            f"  [{1e3 * row['seconds_min']:.3f} .. {1e3 * row['seconds_max']:.3f}]"
            f"{row['bytes_per_second'] / 1e9:8.2f} GB/s  {ratio:6.2f} x async",
            flush=True,
        )


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes; under a minute")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    sizes, repeats = (QUICK_SIZES, 5) if options.quick else (SIZES, 9)

    with tempfile.TemporaryDirectory() as folder:
        rows = measure(sizes, repeats, str(Path(folder) / "store"))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(sizes: list[tuple[int, int]], repeats: int, store_path: str) -> list[dict[str, Any]]:
    """All sizes, one after the other; inside a size the transports take turns."""
    torch.set_num_threads(1)
    ray_bench = RayBench()
    devices = Devices(store_path)
    dist.init_process_group("gloo", f"file://{store_path}", rank=0, world_size=NUM_DEVICES + 1)
    rows = []
    for size in sizes:
        bench = Bench(devices, size)
        laps: dict[str, list[Lap]] = {"async": [], "memcpy": [], "gloo": [], "ray": []}
        for _ in range(repeats):
            for transport, timed in laps.items():
                timed.append(ray_bench.lap(*size) if transport == "ray" else bench.lap(transport))
        measured = rows_of(size, bench.dispatch_bytes, laps)
        print_size(size, bench.dispatch_bytes, measured)
        rows += measured
    print(f"\nidle MoE device: {100 * idle_share(devices, bench):.2f} % of a core over {IDLE_S:.0f} s")
    devices.stop()
    dist.destroy_process_group()
    ray_bench.stop()
    return rows


if __name__ == "__main__":
    main()
