"""A ring of the last spans for each stream of a device: bounded memory, under a microsecond a span."""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from asap_ray.batch import Batch
from asap_ray.laps import Record, Recorder, State
from asap_ray.protocol import WorkItem
from asap_ray.tracks import Role, Source, StartedBatch, Timeline, Track

SPAN: Final = np.dtype(
    [
        ("began_s", "<f8"),
        ("ended_s", "<f8"),
        ("batch", "<u4"),  # of an attention rank, counted from 1; 0 is none
        ("num_rows", "<u4"),  # tokens of a batch, or rows of an item
        ("dp_group", "<u2"),  # of an item
        ("layer", "<i2"),  # -1 is none
        ("slot", "i1"),  # -1 is none
        ("state", "u1"),
        ("unused", "V2"),
    ]
)
_PACK: Final = struct.Struct("<ddIIHhbB2x").pack_into

CAPACITY: Final = 1 << 16
"""Spans of a stream: 2 MiB. At three a layer of a batch and a layer a millisecond, the last 20 s."""

_BATCHES: Final = 1 << 12
"""Batches a ring remembers the requests of."""


class InFlight(Protocol):
    """What a loop of attention works on: a batch in a slot."""

    @property
    def batch(self) -> Batch:
        """Its requests."""

    @property
    def slot(self) -> int:
        """0 or 1."""

    @property
    def layer(self) -> int:
        """The next one to compute."""


class Ring:
    """The spans of one stream, which alone writes. `spans` is for any thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._memory = bytearray(capacity * SPAN.itemsize)
        self._num_written = 0
        self.batches: deque[StartedBatch] = deque(maxlen=_BATCHES)

    def spans(self) -> NDArray[Any]:
        """Those that are still there, in order of time; an array of `SPAN`."""
        # The number first: what is written meanwhile is left out, or replaces the oldest.
        num_written = self._num_written
        spans = np.frombuffer(bytes(self._memory), SPAN)[: min(num_written, self._capacity)]
        return spans[np.argsort(spans["ended_s"], kind="stable")]

    def _next(self) -> int:
        place: int = self._num_written % self._capacity * SPAN.itemsize
        return place


class BatchRing(Ring):
    """Of a stream that computes batches."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._num_batches = 0
        self._started: dict[int, StartedBatch] = {}  # by slot

    def record(self, state: State, began_s: float, ended_s: float, flight: InFlight | None) -> None:
        """See `Record`."""
        if flight is None:
            _PACK(self._memory, self._next(), began_s, ended_s, 0, 0, 0, -1, -1, state)
        else:
            if state is State.START:
                self._start(flight)
            batch = self._started[flight.slot]
            layer = flight.layer - 1 if state is State.COMBINE else flight.layer  # results of the layer before
            place = self._next()
            _PACK(self._memory, place, began_s, ended_s, batch.number, batch.num_tokens, 0, layer, flight.slot, state)
        self._num_written += 1

    def _start(self, flight: InFlight) -> None:
        self._num_batches += 1
        ids = tuple(request.request_id for request in flight.batch.requests)
        batch = StartedBatch(number=self._num_batches, num_tokens=flight.batch.num_tokens, request_ids=ids)
        self._started[flight.slot] = batch
        self.batches.append(batch)


class ItemRing(Ring):
    """Of a stream of a MoE device."""

    def record(self, state: State, began_s: float, ended_s: float, work: WorkItem | None) -> None:
        """See `Record`."""
        if work is None:
            _PACK(self._memory, self._next(), began_s, ended_s, 0, 0, 0, -1, -1, state)
        else:
            place = self._next()
            _PACK(self._memory, place, began_s, ended_s, 0, work.num_rows, work.dp_group, work.layer, work.slot, state)
        self._num_written += 1


class Recordings:
    """The recordings of several devices of one process."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._recordings: list[Recording] = []

    def device(self, source: Source) -> Recorder:
        """Begin to record a device (a `Recorders`)."""
        recording = Recording(source, self._capacity)
        self._recordings.append(recording)
        return recording.stream

    def timeline(self, since_s: float = -math.inf) -> Timeline:
        """What all of them recorded, from `since_s` on."""
        return Timeline(tracks=tuple(track for each in self._recordings for track in each.tracks(since_s)))


class Recording:
    """The rings of one device."""

    def __init__(self, source: Source, capacity: int = CAPACITY) -> None:
        self._source = source
        self._capacity = capacity
        self._rings: dict[str, Ring] = {}

    def stream(self, name: str) -> Record[Any]:
        """Begin to record a stream (a `Recorder`)."""
        ring = (ItemRing if self._source.role is Role.MOE else BatchRing)(self._capacity)
        self._rings[name] = ring
        return ring.record

    def tracks(self, since_s: float) -> tuple[Track, ...]:
        """Spans that ended at `since_s` or later, and the batches they are of."""
        return tuple(self._track(stream, ring, since_s) for stream, ring in self._rings.items())

    def _track(self, stream: str, ring: Ring, since_s: float) -> Track:
        spans = ring.spans()
        spans = spans[spans["ended_s"] >= since_s]
        numbers = set(spans["batch"].tolist())
        batches = tuple(batch for batch in tuple(ring.batches) if batch.number in numbers)
        return Track(source=self._source, stream=stream, spans=spans.tobytes(), batches=batches)
