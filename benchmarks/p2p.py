"""Asynchronous dispatch beside synchronous point-to-point (5.4): a rank and two MoE devices, idle or computing.

    async   async_dispatch_send: rows and bits into both buffers, whatever the devices do
    p2p     the same kernels and buffers, device after device: ask, wait until the device is between two
            items and says yes, write its rows

A busy device computes item after item of 2 ms CPU time. The attention process has a core for itself; both device
processes share the other, so that computing does not slow the sender's copy. Every token goes to both devices.
A dispatch is timed until the sender may go on. The kinds take turns within each repeat; medians and ranges.
"""

# Shapes: S tokens, H hidden, K = 2 choices a token.

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing as mp
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np

from asap_ray import _native
from asap_ray.errors import Closed
from asap_ray.layout import Layout, layout_of
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, PrefillSpec, RowType

HIDDEN: Final = 7168
NUM_DEVICES: Final = 2
DEADLINE_S: Final = 60.0
ITEM_S: Final = 0.002
WARM_S: Final = 0.05  # for devices to be in the middle of their work
SIZES: Final = (128, 256, 512, 1024, 2048, 4096, 8192)

ASK: Final = "may I?"
YES: Final = "yes"


def layout(num_tokens: int, num_devices: int) -> Layout:
    """One rank, devices with an expert each, slots of `num_tokens` rows."""
    return layout_of(
        Instance(
            model=ModelSpec(num_layers=1, hidden=HIDDEN, num_experts=num_devices, top_k=num_devices),
            parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=num_devices),
            prefill=PrefillSpec(
                max_tokens=2 * num_tokens, solo_tokens=num_tokens, inflection_tokens=1, row_type=RowType.BFLOAT16
            ),
        )
    )


def moe_comm(of: Layout, buffer: _native.SharedBuffer, attention: tuple[int, int], e: int) -> _native.MoEComm:
    """Device e's side, facing an attention buffer given by pid and descriptor."""
    opened = _native.SharedBuffer.open(*attention, of.attention_bytes)
    return _native.MoEComm(
        _native.Layout(**dataclasses.asdict(of)), buffer, [[opened]], e, [1], "bfloat16", "bfloat16", "reduced"
    )


def echo(comm: _native.MoEComm) -> None:
    """Take one message and send its rows back."""
    item = comm.async_dispatch_recv(DEADLINE_S)
    comm.async_combine_send(item, item.rows)


def receive(comm: _native.MoEComm) -> None:
    """Take whatever comes, until the end."""
    with suppress(Closed):
        while True:
            echo(comm)


def device_process(e: int, num_tokens: int, core: int, pipe: Connection) -> None:
    """MoE device e. Asynchronous messages are a thread's; synchronous ones wait until an item is done."""
    os.sched_setaffinity(0, {core})
    shared, own = layout(num_tokens, NUM_DEVICES), layout(num_tokens, 1)
    buffers = [_native.SharedBuffer.create(f"p2p-moe-{e}-{of.moe_devices}", of.moe_bytes) for of in (shared, own)]
    pipe.send([(buffer.pid, buffer.fd) for buffer in buffers])
    async_place, p2p_place = pipe.recv()
    async_comm = moe_comm(shared, buffers[0], async_place, e)
    p2p_comm = moe_comm(own, buffers[1], p2p_place, 0)
    pipe.send(YES)

    receiving = threading.Thread(target=receive, args=(async_comm,))
    receiving.start()
    matrix = np.random.default_rng(e).standard_normal((128, 128), dtype=np.float32)
    is_busy = False
    while True:
        if is_busy:
            compute(matrix)
            if not pipe.poll():
                continue
        if (word := pipe.recv()) is None:
            break
        if word == ASK:
            pipe.send(YES)
            echo(p2p_comm)
        else:
            is_busy = word
    async_comm.abort()
    receiving.join()


def compute(matrix: np.ndarray[Any, Any]) -> None:
    """One item."""
    end_s = time.thread_time() + ITEM_S
    while time.thread_time() < end_s:
        matrix @ matrix  # only its time matters


class Sender:
    """The attention rank, with a lane to both devices together and one to each alone."""

    def __init__(self, num_tokens: int, pipes: list[Connection]) -> None:
        self._pipes = pipes
        shared, own = layout(num_tokens, NUM_DEVICES), layout(num_tokens, 1)
        places = [pipe.recv() for pipe in pipes]
        self._buffers = [_native.SharedBuffer.create("p2p-attention", of.attention_bytes) for of in (shared, own, own)]
        for pipe, buffer in zip(pipes, self._buffers[1:], strict=True):
            pipe.send([(self._buffers[0].pid, self._buffers[0].fd), (buffer.pid, buffer.fd)])
        assert [pipe.recv() for pipe in pipes] == [YES] * NUM_DEVICES
        self._async = _comm(shared, self._buffers[0], [place[0] for place in places])
        self._p2p = [_comm(own, self._buffers[1 + e], [places[e][1]]) for e in range(NUM_DEVICES)]
        self._rows_SH = np.random.default_rng(0).integers(0, 1 << 14, (num_tokens, HIDDEN), dtype=np.uint16)
        self._out_SH = np.empty_like(self._rows_SH)
        self._ids_SK = np.tile(np.arange(NUM_DEVICES, dtype=np.int32), (num_tokens, 1))
        self._weights_SK = np.full((num_tokens, NUM_DEVICES), 1 / NUM_DEVICES, dtype=np.float32)

    def set_busy(self, is_busy: bool) -> None:
        """Whether devices compute from now on."""
        for pipe in self._pipes:
            pipe.send(is_busy)
        time.sleep(WARM_S)

    def dispatch_async(self) -> float:
        """Seconds until both devices' bits are set."""
        began_s = time.perf_counter()
        self._async.async_dispatch_send(0, 0, self._rows_SH, self._ids_SK, self._weights_SK, DEADLINE_S)
        sent_s = time.perf_counter() - began_s
        self._async.async_combine_recv(0, self._out_SH, DEADLINE_S)
        return sent_s

    def dispatch_p2p(self) -> float:
        """Seconds until the last device has its rows: a handshake and a copy each, one after the other."""
        ids_S1, weights_S1 = self._ids_SK[:, :1].copy(), self._weights_SK[:, :1].copy()
        began_s = time.perf_counter()
        for pipe, comm in zip(self._pipes, self._p2p, strict=True):
            pipe.send(ASK)
            assert pipe.recv() == YES
            comm.async_dispatch_send(0, 0, self._rows_SH, ids_S1, weights_S1, DEADLINE_S)
        sent_s = time.perf_counter() - began_s
        for comm in self._p2p:
            comm.async_combine_recv(0, self._out_SH, DEADLINE_S)
        return sent_s


def _comm(of: Layout, buffer: _native.SharedBuffer, places: list[tuple[int, int]]) -> _native.AttentionComm:
    devices = [_native.SharedBuffer.open(*place, of.moe_bytes) for place in places]
    experts = range(of.num_experts)
    return _native.AttentionComm(
        _native.Layout(**dataclasses.asdict(of)), buffer, devices, experts, 0, 0, 1, "bfloat16", "reduced"
    )


@contextmanager
def devices(num_tokens: int, core: int) -> Iterator[list[Connection]]:
    """Both device processes, ended with the block."""
    context = mp.get_context("spawn")
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    for e in range(NUM_DEVICES):
        mine, its = context.Pipe()
        process: BaseProcess = context.Process(target=device_process, args=(e, num_tokens, core, its), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()


def measure(num_tokens: int, num_repeats: int, device_core: int) -> list[dict[str, Any]]:
    """The rows of one size."""
    seconds: dict[tuple[str, str], list[float]] = {}
    with devices(num_tokens, device_core) as pipes:
        sender = Sender(num_tokens, pipes)
        for repeat in range(num_repeats + 1):
            for receivers in ("idle", "busy"):
                sender.set_busy(receivers == "busy")
                for transport, dispatch in (("async", sender.dispatch_async), ("p2p", sender.dispatch_p2p)):
                    taken_s = dispatch()
                    if repeat:  # the first one touches the pages
                        seconds.setdefault((transport, receivers), []).append(taken_s)
    return [
        {
            "tokens": num_tokens,
            "transport": transport,
            "receivers": receivers,
            "seconds": statistics.median(each),
            "seconds_min": min(each),
            "seconds_max": max(each),
        }
        for (transport, receivers), each in seconds.items()
    ]


def print_size(rows: list[dict[str, Any]]) -> None:
    """One line of the table."""
    by_kind = {(row["receivers"], row["transport"]): row for row in rows}
    cells = [str(rows[0]["tokens"])]
    for receivers in ("idle", "busy"):
        own, its = by_kind[receivers, "async"], by_kind[receivers, "p2p"]
        cells += [_milliseconds(own), _milliseconds(its), f"{its['seconds'] / own['seconds']:.1f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def _milliseconds(row: dict[str, Any]) -> str:
    least, middle, most = (1e3 * row[key] for key in ("seconds_min", "seconds", "seconds_max"))
    return f"{middle:.2f} ({least:.2f} to {most:.2f})"


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes; ten seconds")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = "1"  # of the device processes
    os.sched_setaffinity(0, {cores[0]})
    print("| tokens | idle: async, ms | p2p, ms | p2p / async | busy: async, ms | p2p, ms | p2p / async |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for num_tokens in SIZES[::3] if options.quick else SIZES:
        of_size = measure(num_tokens, 5 if options.quick else 15, cores[-1])
        print_size(of_size)
        rows += of_size
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
