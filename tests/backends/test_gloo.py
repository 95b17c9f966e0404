"""Tensor parallelism over gloo: sums and orders of ranks, and a wait that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from asap_ray.backends.gloo import GlooCollective, find_store, open_store
from asap_ray.errors import PeerTimeout


def on_ranks(size: int, work: Callable[[GlooCollective], Any], deadline_s: float = 20.0) -> list[Any]:
    """The result of `work` on every rank, each in a thread; an exception is a result."""
    store = dist.HashStore()
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(GlooCollective(store, rank, size, deadline_s, join_timeout_s=20.0))
        except PeerTimeout as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_gather_keeps_the_order_of_ranks(dtype: torch.dtype) -> None:
    """Rank j's rows are the j-th part, on every rank."""
    gathered = on_ranks(3, lambda group: group.all_gather(torch.full((1, 2), group.rank, dtype=dtype)).tolist())

    assert gathered == [[[0, 0], [1, 1], [2, 2]]] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(dtype: torch.dtype) -> None:
    """Three ranks that hold 0, 1 and 2 in each row sum to 3; each keeps one row."""
    parts = on_ranks(3, lambda group: group.reduce_scatter(torch.full((3, 2), group.rank, dtype=dtype)).tolist())

    assert parts == [[[3, 3]]] * 3


@pytest.mark.parametrize("message", [b"", b"a batch"])
def test_broadcast_is_the_leaders_message(message: bytes) -> None:
    """Every rank hears rank 0, the empty message included."""
    heard = on_ranks(2, lambda group: group.broadcast(message if group.rank == 0 else None))

    assert heard == [message] * 2


def test_a_wait_ends_and_names_the_ranks() -> None:
    """A rank whose peers never come gives up at its deadline and says whom it waited for."""
    alone = on_ranks(2, lambda group: group.all_gather(torch.ones(1, 1)) if group.rank == 0 else None, deadline_s=0.2)

    assert "TP rank 0 waited for rank(s) 1" in str(alone[0])


def test_the_meeting_point_of_ranks_is_on_the_loopback() -> None:
    """The kernel lists its listener under 127.0.0.1 and no other address; a rank finds it there."""
    store = open_store()
    find_store(store.port).set("rank 1", "here")
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    addresses = {address for address, port in (each.split(":") for each in listening) if int(port, 16) == store.port}

    assert (store.get("rank 1"), addresses) == (b"here", {"0100007F"})
