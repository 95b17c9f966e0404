"""Rings of spans: what they keep, and what they do not change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from asap_ray.batch import Batch, Request
from asap_ray.evaluation.points import run_of
from asap_ray.laps import State
from asap_ray.protocol import WorkItem
from asap_ray.telemetry.recording import SPAN, Recording, Recordings
from asap_ray.telemetry.trace_events import seconds_covered
from asap_ray.tracks import Role, Source, StartedBatch
from tests.evaluation.fakes import point

MOE = Source(role=Role.MOE, index=0)


@dataclass
class Flight:
    """A batch in a slot."""

    batch: Batch
    slot: int
    layer: int = 0


def flight_of(name: str, slot: int) -> Flight:
    """A batch of one prompt."""
    return Flight(Batch((Request(request_id=name, num_tokens=3, arrival_s=0.0),)), slot)


def test_a_ring_keeps_the_last_spans() -> None:
    """Six spans in a ring of four: the third to the sixth, in their order."""
    recording = Recording(MOE, capacity=4)
    record = recording.stream("compute")
    for n in range(6):
        record(State.STARVED, float(n), n + 1.0, None)

    (track,) = recording.tracks(since_s=0.0)
    assert np.frombuffer(track.spans, SPAN)["ended_s"].tolist() == [3.0, 4.0, 5.0, 6.0]


def test_only_what_ended_since_is_handed_over() -> None:
    """A span that ends at the given time is part of it."""
    recording = Recording(MOE)
    record = recording.stream("compute")
    for n in range(4):
        record(State.STARVED, float(n), n + 1.0, None)

    (track,) = recording.tracks(since_s=3.0)
    assert np.frombuffer(track.spans, SPAN)["ended_s"].tolist() == [3.0, 4.0]


def test_a_span_of_an_item_says_where_it_came_from() -> None:
    """Group, slot, layer and rows, at the ends of their ranges."""
    recording = Recording(MOE)
    work = WorkItem(65535, 1, 32767, 2**32 - 1, None, None, None, 0.0)
    recording.stream("compute")(State.EXPERTS, 1.5, 2.5, work)

    (span,) = np.frombuffer(recording.tracks(0.0)[0].spans, SPAN)
    fields = [span[name].item() for name in ("began_s", "ended_s", "dp_group", "slot", "layer", "num_rows", "state")]
    assert fields == [1.5, 2.5, 65535, 1, 32767, 2**32 - 1, State.EXPERTS]


def test_batches_are_numbered_as_they_start() -> None:
    """Each slot's spans carry the number of what is in it; results belong to the layer before the next one."""
    recording = Recording(Source(role=Role.ATTENTION, index=0))
    record = recording.stream("attention")
    first, second = flight_of("a", slot=0), flight_of("b", slot=1)
    record(State.START, 0.0, 1.0, first)
    record(State.START, 1.0, 2.0, second)
    first.layer = 1
    record(State.COMBINE, 2.0, 3.0, first)

    (track,) = recording.tracks(0.0)
    spans = np.frombuffer(track.spans, SPAN)
    assert (spans["batch"].tolist(), spans["layer"].tolist()) == ([1, 2, 1], [0, 0, 0])
    assert track.batches == (
        StartedBatch(number=1, num_tokens=3, request_ids=("a",)),
        StartedBatch(number=2, num_tokens=3, request_ids=("b",)),
    )


@pytest.mark.parametrize("system", ["asap", "paper", "no_overlap", "default_vllm"])
def test_recording_changes_no_simulated_number(system: str) -> None:
    """Every request's times are the same with and without."""
    short = replace(point(system=system), duration_s=3.0)
    recordings = Recordings()

    assert run_of(short, recordings.device) == run_of(short)
    assert seconds_covered(recordings.timeline()) > 1.0
