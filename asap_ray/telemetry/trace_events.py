"""A timeline as a Chrome trace (JSON), which Perfetto opens: a process a device, a thread a stream.

Format: the JSON array of Chrome's Trace Event Format, events `X` (a span), `M` (a name), and `s`, `t`, `f` (a flow).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from asap_ray.laps import State
from asap_ray.telemetry.recording import SPAN
from asap_ray.tracks import Role, Timeline, Track
from asap_ray.whole_file import whole_file

Event = dict[str, Any]

_RESTS: Final = (State.IDLE, State.STARVED, State.BLOCKED)
_PASSED: Final = {State.ATTENTION, State.DISPATCH, State.RECEIVE, State.EXPERTS, State.SEND, State.FINISH}
"""Spans that a flow passes, where they begin. Not combine, the wait that may begin before what it waits for: Perfetto
turns an arrow round that leads to an earlier span. What follows a combine is the next attention, or the finish."""

_FIRST_SLOT_TID: Final = 100
"""Threads of a device from here on are its slots: what is in them, from start to finish."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a track, in nanoseconds since the first of the timeline."""

    state: State
    began_ns: int
    ended_ns: int
    batch: int
    num_rows: int
    dp_group: int
    layer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Row:
    """A track in the trace."""

    track: Track
    pid: int
    tid: int
    spans: tuple[Span, ...]

    def event(self, phase: str, at_ns: int, **fields: Any) -> Event:
        """An event of this track."""
        return {"ph": phase, "pid": self.pid, "tid": self.tid, "ts": at_ns / 1000, **fields}


def write_trace(path: Path, timeline: Timeline) -> None:
    """Write a file that ui.perfetto.dev and chrome://tracing open; raises as `whole_file` does."""
    with whole_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for index, event in enumerate(trace_events(timeline)):
            file.write(",\n" if index else "\n")
            file.write(json.dumps(event, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")


def trace_events(timeline: Timeline) -> Iterator[Event]:
    """Names first, then spans, the batches in the slots, and the flows of batches through devices and layers."""
    rows = _rows(timeline)
    senders = _Senders(rows)
    for row in rows:
        yield from _names(row)
    for row in rows:
        yield from _spans(row, senders)
        yield from _slots(row)
    yield from _flows(rows, senders)


def seconds_covered(timeline: Timeline) -> float:
    """From the first span to the last."""
    times_s = [np.frombuffer(track.spans, SPAN) for track in timeline.tracks if track.spans]
    if not times_s:
        return 0.0
    return float(max(each["ended_s"].max() for each in times_s) - min(each["began_s"].min() for each in times_s))


def _rows(timeline: Timeline) -> list[Row]:
    """The tracks with their spans; what took no time is left out."""
    records = [np.frombuffer(track.spans, SPAN) for track in timeline.tracks]
    zero_s = min((float(each["began_s"].min()) for each in records if len(each)), default=0.0)
    pids: dict[str, int] = {}
    rows: list[Row] = []
    for track, spans in zip(timeline.tracks, records, strict=True):
        pid = pids.setdefault(track.source.name, len(pids) + 1)
        tid = 1 + sum(row.pid == pid for row in rows)
        read = (_span(zero_s, *record) for record in spans.tolist())
        rows.append(Row(track, pid, tid, tuple(span for span in read if span.ended_ns > span.began_ns)))
    return rows


def _span(zero_s: float, began_s: float, ended_s: float, *fields: Any) -> Span:
    """Of the fields of a `SPAN`, in their order."""
    batch, num_rows, dp_group, layer, slot, state, _ = fields
    began_ns, ended_ns = round((began_s - zero_s) * 1e9), round((ended_s - zero_s) * 1e9)
    return Span(State(state), began_ns, ended_ns, batch, num_rows, dp_group, layer, slot)


class _Senders:
    """Which batch a span is of: on a MoE device that of the last dispatch from its group, slot and layer."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._dispatches: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for row in rows:
            source = row.track.source
            if source.role is Role.ATTENTION and source.tp_rank == 0:
                for span in row.spans:
                    if span.state is State.DISPATCH:
                        began_ns, batches = self._dispatches[source.index, span.slot, span.layer]
                        began_ns.append(span.began_ns)
                        batches.append(span.batch)

    def batch_of(self, row: Row, span: Span) -> tuple[int, int]:
        """Group (or worker) and number; the number is 0 if it is of none, or its dispatch was not recorded."""
        if row.track.source.role is not Role.MOE:
            return row.track.source.index, span.batch
        began_ns, batches = self._dispatches.get((span.dp_group, span.slot, span.layer), ([], []))
        sent = bisect_right(began_ns, span.ended_ns)
        return span.dp_group, batches[sent - 1] if sent else 0


def _names(row: Row) -> Iterator[Event]:
    source = row.track.source
    yield row.event("M", 0, name="process_name", args={"name": source.name})
    yield row.event("M", 0, name="process_sort_index", args={"sort_index": row.pid})
    yield row.event("M", 0, name="thread_name", args={"name": row.track.stream})
    for slot in sorted({span.slot for span in row.spans if span.batch}):
        tid = _FIRST_SLOT_TID + slot
        yield row.event("M", 0, name="thread_name", args={"name": f"slot {slot}"}) | {"tid": tid}


def _spans(row: Row, senders: _Senders) -> Iterator[Event]:
    unit = "rows" if row.track.source.role is Role.MOE else "tokens"
    for span in row.spans:
        kind = "rest" if span.state in _RESTS else "work"
        event = row.event("X", span.began_ns, name=span.state.name.lower(), cat=kind)
        event["dur"] = (span.ended_ns - span.began_ns) / 1000
        if span.slot >= 0:
            group, number = senders.batch_of(row, span)
            event["args"] = {"layer": span.layer, "slot": span.slot, unit: span.num_rows, "batch": f"{group}/{number}"}
        yield event


def _slots(row: Row) -> Iterator[Event]:
    """Each batch in its slot, with the ids of its requests: what a search for an id finds."""
    times_ns: dict[int, tuple[int, int, int]] = {}
    for span in row.spans:
        if span.batch:
            began_ns = times_ns[span.batch][1] if span.batch in times_ns else span.began_ns
            times_ns[span.batch] = span.slot, began_ns, span.ended_ns
    for batch in row.track.batches:
        if batch.number in times_ns:
            slot, began_ns, ended_ns = times_ns[batch.number]
            name = f"batch {row.track.source.index}/{batch.number}"
            requests = " ".join(batch.request_ids)
            event = row.event("X", began_ns, name=name, cat="batch", dur=(ended_ns - began_ns) / 1000)
            yield event | {"tid": _FIRST_SLOT_TID + slot, "args": {"requests": requests, "tokens": batch.num_tokens}}


def _flows(rows: list[Row], senders: _Senders) -> Iterator[Event]:
    """For each batch, rank and MoE device one flow: attention, dispatch, receive, experts, send; layer after layer."""
    for number, anchors in enumerate(_anchors(rows, senders).values(), start=1):
        anchors.sort(key=lambda anchor: anchor[0])
        for place, (at_ns, row) in enumerate(anchors):
            phase = "s" if place == 0 else "f" if place == len(anchors) - 1 else "t"
            yield row.event(phase, at_ns, id=number, name="batch", cat="flow", bp="e")


def _anchors(rows: list[Row], senders: _Senders) -> dict[tuple[int, ...], list[tuple[int, Row]]]:
    """Where flows pass, by (group, rank, batch, MoE device); those that pass one place only are left out."""
    devices = {row.track.source.index for row in rows if row.track.source.role is Role.MOE}
    ranks: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.track.source.role is Role.ATTENTION:
            ranks[row.track.source.index].add(row.track.source.tp_rank)
    anchors: dict[tuple[int, ...], list[tuple[int, Row]]] = defaultdict(list)
    for row in rows:
        source = row.track.source
        for span in row.spans:
            group, batch = senders.batch_of(row, span)
            if not batch or span.state not in _PASSED:
                continue
            for rank in ranks[group] if source.role is Role.MOE else {source.tp_rank}:
                for device in {source.index} if source.role is Role.MOE else devices:
                    anchors[group, rank, batch, device].append((span.began_ns, row))
    return {key: passed for key, passed in anchors.items() if len(passed) > 1}
