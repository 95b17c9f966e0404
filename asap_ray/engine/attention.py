"""The loop of one attention rank: two batches in flight, layer by layer (3.3.2, 3.5)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from asap_ray.batch import Batch, Duty, Stamps
from asap_ray.laps import ATTENTION, COMBINE, DISPATCH, FINISH, IDLE, START, Laps
from asap_ray.protocol import AttentionComm, AttentionStage, BatchQueue, Runtime
from asap_ray.spec import NUM_SLOTS
from asap_ray.totals import Pace, size_of


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank j of DP group i: what its loop works with."""

    runtime: Runtime
    comm: AttentionComm
    stage: AttentionStage
    queue: BatchQueue
    laps: Laps[Flight]
    duty: Duty = field(default_factory=Duty.zero)
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class Flight:
    """A batch in a slot, at a layer of its own."""

    batch: Batch
    slot: int
    state: Any
    admitted_s: float
    num_rows: int  # of this pass: the prompts' tokens, later one a request that goes on
    size: str  # of this pass: `size_of`
    num_passes: int = 0  # before this one
    layer: int = 0
    stamps: Stamps = field(default_factory=Stamps)


async def serve(rank: Rank) -> None:
    """Alternate over the occupied slots; a slot is refilled as soon as its batch is done.

    Every rank of a group takes the same turns, so the order of its collectives is the same on all.
    Only `Closed` or a failure ends it.
    """
    flights: list[Flight | None] = [None] * NUM_SLOTS
    while True:
        for slot in range(NUM_SLOTS):
            occupied = tuple(flight.batch for flight in flights if flight)
            if flights[slot] is None and (occupied or slot == 0):  # an idle group starts in slot 0: solo fits
                flights[slot] = await _admit(rank, slot, occupied)
            if flight := flights[slot]:
                flights[slot] = flight if await _advance(rank, flight) else None


async def serve_pairs(rank: Rank) -> None:
    """The paper's admission (3.3.2): two batches start together, and both end before the next pair."""
    while True:
        flights: list[Flight | None] = [None] * NUM_SLOTS
        for slot in range(NUM_SLOTS):
            flights[slot] = await _admit(rank, slot, tuple(flight.batch for flight in flights if flight))
        while any(flights):
            for slot, flight in enumerate(flights):
                if flight:
                    flights[slot] = flight if await _advance(rank, flight) else None


async def _admit(rank: Rank, slot: int, occupied: tuple[Batch, ...]) -> Flight | None:
    batch = await rank.queue.admit(occupied)
    rank.laps.lap(IDLE)
    if batch is None:
        return None
    admitted_s = rank.runtime.now()
    flight = Flight(batch, slot, await rank.stage.start(batch), admitted_s, batch.num_tokens, _prefill_size(batch))
    rank.laps.lap(START, flight)
    return flight


async def _advance(rank: Rank, flight: Flight) -> bool:
    """One turn of a slot: take a layer's results, compute up to the next router, send. False at the end."""
    laps, stamps = rank.laps, flight.stamps
    expert_out = None
    if flight.layer > 0:
        expert_out = await rank.comm.combine_recv(flight.slot)
        stamps.combine_s += laps.lap(COMBINE, flight)
    if flight.layer == rank.stage.num_layers:
        return await _finish(rank, flight, expert_out)

    routed = await rank.stage.attend(flight.state, flight.layer, expert_out)
    attention_s = laps.lap(ATTENTION, flight)
    await rank.comm.dispatch_send(flight.slot, flight.layer, routed)
    stamps.attention_s += attention_s
    stamps.dispatch_s += laps.lap(DISPATCH, flight)
    rank.duty.add(attention_s, flight.num_rows)
    rank.pace.add(flight.size, attention_s)
    flight.layer += 1
    return True


async def _finish(rank: Rank, flight: Flight, expert_out: Any) -> bool:
    """Tokens out; the batch stays in its slot while a request of it decodes."""
    finished = await rank.stage.finish(flight.state, expert_out, rank.queue.unwanted())
    finish_s = rank.laps.lap(FINISH, flight)
    flight.stamps.attention_s += finish_s
    flight.stamps.total_s = rank.runtime.now() - flight.admitted_s
    rank.duty.add(finish_s, 0)
    await rank.queue.deliver(flight.batch, finished.tokens, flight.stamps)
    flight.state, flight.layer = finished.next_state, 0
    if finished.next_state is not None:
        _go_on(flight, {token.request_id for token in finished.tokens if token.finish_reason is None})
    return finished.next_state is not None


def _go_on(flight: Flight, going: Set[str]) -> None:
    """The next pass has a row for each request that wants more."""
    flight.num_passes += 1
    flight.num_rows = len(going)
    prompt_tokens = sum(each.prompt_tokens for each in flight.batch.requests if each.request_id in going)
    flight.size = size_of(len(going), prompt_tokens // max(1, len(going)) + flight.num_passes)


def _prefill_size(batch: Batch) -> str:
    """A token attends to what is before it: to half of its own chunk on average."""
    num_pairs = sum(each.num_tokens * (each.past_tokens + each.num_tokens // 2) for each in batch.requests)
    return size_of(batch.num_tokens, num_pairs // max(1, batch.num_tokens))
