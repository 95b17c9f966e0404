"""Tensor parallelism inside one DP group on CPUs: torch.distributed's gloo, one process group a DP group."""

# Shapes: rows of S tokens, S/T a rank.

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import BroadcastOptions, Store

from asap_ray.errors import PeerTimeout

_LOCALHOST: Final = "127.0.0.1"
"""The ranks of a group share a bundle, and a bundle never spans nodes."""


def open_store() -> TCPStore:
    """Where the ranks of a group find each other, made by rank 0. Left to itself it would listen on all interfaces."""
    listener = socket.create_server((_LOCALHOST, 0))
    port = listener.getsockname()[1]
    return TCPStore(_LOCALHOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def find_store(port: int) -> TCPStore:
    """The store of rank 0, for the other ranks."""
    return TCPStore(_LOCALHOST, port, is_master=False)


class GlooCollective:
    """A `Collective` over gloo; a rank that waits longer than `deadline_s` for the others raises PeerTimeout.

    The group is private to its DP group: there is no default process group, so nothing can span two.
    """

    def __init__(self, store: Store, rank: int, size: int, deadline_s: float, join_timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        gloo: Any = ProcessGroupGloo  # its stub lacks the collectives
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=_LOCALHOST)]
        options._timeout = timedelta(seconds=join_timeout_s)  # ranks load weights before they come
        self._group = gloo(store, rank, size, options)
        self._group._set_default_timeout(timedelta(seconds=deadline_s))
        self._from_leader = BroadcastOptions()

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Concatenate every rank's rows along dimension 0, in rank order."""
        gathered = rows.new_empty((rows.shape[0] * self.size, *rows.shape[1:]))
        self._wait("all_gather", self._group._allgather_base(gathered, rows.contiguous()))
        return gathered

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; this rank keeps its equal part of dimension 0."""
        part = rows.new_empty((rows.shape[0] // self.size, *rows.shape[1:]))
        self._wait("reduce_scatter", self._group._reduce_scatter_base(part, rows.contiguous()))
        return part

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's message, on every rank: its length first, then its bytes."""
        length = torch.tensor([len(message) if message is not None else 0])
        self._wait("broadcast", self._group.broadcast([length], self._from_leader))
        if not length.item():
            return b""
        content = torch.empty(int(length.item()), dtype=torch.uint8)
        if message is not None:
            content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        self._wait("broadcast", self._group.broadcast([content], self._from_leader))
        return content.numpy().tobytes()

    def _wait(self, phase: str, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:  # gloo's only kind: a timeout, or a connection its peer closed
            others = ", ".join(str(rank) for rank in range(self.size) if rank != self.rank)
            raise PeerTimeout(f"{phase}: TP rank {self.rank} waited for rank(s) {others}: {error}") from None


class SoloCollective:
    """T = 1: nobody to talk to."""

    rank = 0
    size = 1

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves."""
        return rows

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows themselves."""
        return rows

    def broadcast(self, message: bytes | None) -> bytes:
        """The message itself."""
        return message or b""
