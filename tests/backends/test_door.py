"""A group's door: who may run beside whom, and one answer for every rank."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch.distributed as dist

from asap_ray.backends.door import Door, FollowedDoor
from asap_ray.backends.gloo import GlooCollective
from asap_ray.backends.threads import ThreadRuntime, drive
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.errors import Closed
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=100, solo_tokens=50, inflection_tokens=10)


def batch(name: str, num_tokens: int) -> Batch:
    """A batch of one request."""
    return Batch((Request(request_id=name, num_tokens=num_tokens, arrival_s=0.0, token_ids=bytes(4 * num_tokens)),))


def ignore(_batch: Batch, _tokens: tuple[Token, ...], _stamps: Stamps) -> None:
    """Nobody listens."""


def open_door() -> tuple[ThreadRuntime, Door]:
    """A door and the runtime that closes it."""
    runtime = ThreadRuntime()
    return runtime, Door(runtime, PREFILL, ignore)


def test_two_small_batches_run_side_by_side() -> None:
    """At or below the solo threshold a batch may join another (3.3.2)."""
    _, door = open_door()
    door.put(batch("a", 50))

    assert door.take((batch("b", 50),), timeout_s=None) == batch("a", 50)


@pytest.mark.parametrize(("waiting", "running"), [(51, 1), (1, 51)])
def test_a_solo_batch_has_the_group_to_itself(waiting: int, running: int) -> None:
    """Neither does a batch above the threshold join, nor is it joined."""
    _, door = open_door()
    door.put(batch("a", waiting))

    assert door.take((batch("b", running),), timeout_s=None) is None


def test_nothing_waiting_beside_a_running_batch_is_no_wait() -> None:
    """With a slot occupied the loop must go on, so an empty door answers at once."""
    _, door = open_door()

    assert door.take((batch("b", 1),), timeout_s=None) is None


def test_a_closed_door_ends_the_loop() -> None:
    """An idle loop leaves when its runtime closes."""
    runtime, door = open_door()
    runtime.close()

    with pytest.raises(Closed):
        door.take((), timeout_s=None)


def test_what_nobody_waits_for_is_unwanted_until_its_last_token() -> None:
    """Not what is not here, nor what has its last token already."""
    _, door = open_door()
    done = Token(request_id="done", token_id=1, finish_reason="length")
    for name in ("done", "gone", "here"):
        door.put(batch(name, 10))
    drive(door.deliver(batch("done", 10), (done,), Stamps()))
    door.abort(["done", "gone", "elsewhere"])
    assert door.unwanted() == {"gone"}
    drive(door.deliver(batch("gone", 10), (replace(done, request_id="gone", finish_reason="abort"),), Stamps()))

    assert door.unwanted() == set()


def test_every_rank_of_a_group_sees_the_same_admissions() -> None:
    """The followers' log is the leader's, stop and what to forget included."""
    runtime, leader = open_door()
    store = dist.HashStore()
    seen: dict[int, list[str]] = {0: [], 1: [], 2: []}

    def run(rank: int) -> None:
        door = FollowedDoor(
            GlooCollective(store, rank, 3, deadline_s=20.0, join_timeout_s=20.0), leader if rank == 0 else None
        )
        occupied: tuple[Batch, ...] = ()
        try:
            while True:
                admit = door.admit(occupied)
                try:
                    admit.send(None)
                except StopIteration as stop:
                    admitted = stop.value
                seen[rank].append(" ".join((admitted.requests[0].request_id, *admitted.forget)) if admitted else "none")
                occupied = (*occupied, admitted) if admitted else ()
                if rank == 0 and len(seen[0]) == 5:
                    runtime.close()
        except Closed:
            seen[rank].append("stop")

    for name, size in (("a", 10), ("b", 20), ("c", 90)):
        leader.put(Batch(batch(name, size).requests, forget=(f"before {name}",)))
    leader.put(batch("d", 1))
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {rank: ["a before a", "b before b", "none", "c before c", "none", "stop"] for rank in range(3)}
