"""A strict reader of Chrome traces: whatever breaks a rule of the format is an error, where a viewer would guess."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    """A span of a track."""

    process: str
    thread: str
    name: str
    began_us: Fraction
    ended_us: Fraction
    args: dict[str, Any]


@dataclass
class Trace:
    """What a viewer shows."""

    slices: list[Slice] = field(default_factory=list)
    flows: list[list[Slice]] = field(default_factory=list)  # each the slices it passes, in order of time

    def named(self, name: str) -> list[Slice]:
        return [each for each in self.slices if each.name == name]


def read_trace(path: Path) -> Trace:
    """Raises ValueError at the first rule that is broken."""
    events = json.loads(path.read_text(), parse_float=Fraction, parse_int=Fraction, parse_constant=_refuse)[
        "traceEvents"
    ]
    processes, threads = _names(events)
    trace, tracks = Trace(), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            began_us = Fraction(event["ts"])
            ended_us = began_us + Fraction(event["dur"])
            _check(event["dur"] > 0, "a span takes time", event)
            read = Slice(
                processes[event["pid"]], threads[track], event["name"], began_us, ended_us, event.get("args", {})
            )
            tracks[track].append(read)
            trace.slices.append(read)
    for slices in tracks.values():
        _check_nesting(slices)
    trace.flows = _flows(events, tracks)
    return trace


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _check(is_so: bool, rule: str, event: Any) -> None:
    if not is_so:
        raise ValueError(f"{rule}: {event}")


def _names(events: list[dict[str, Any]]) -> tuple[dict[Any, str], dict[Any, str]]:
    processes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    for event in events:
        _check(event["ph"] in "XMstf", "an unknown phase", event)
        if event["ph"] == "M" and event["name"] == "process_name":
            name = event["args"]["name"]
            _check(processes.setdefault(event["pid"], name) == name, "a process has one name", event)
        if event["ph"] == "M" and event["name"] == "thread_name":
            name = event["args"]["name"]
            _check(threads.setdefault((event["pid"], event["tid"]), name) == name, "a thread has one name", event)
    _check(len(set(processes.values())) == len(processes), "two processes of one name", processes)
    return processes, threads


def _check_nesting(slices: list[Slice]) -> None:
    """Spans of a track follow or contain each other; ours only follow."""
    ordered = sorted(slices, key=lambda each: each.began_us)
    for earlier, later in pairwise(ordered):
        _check(earlier.ended_us <= later.began_us, "spans of a track overlap", (earlier, later))


def _flows(events: list[dict[str, Any]], tracks: dict[Any, list[Slice]]) -> list[list[Slice]]:
    """A flow begins once, ends once, goes forward in time, and binds to a span wherever it passes."""
    by_id: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            by_id[event["cat"], event["name"], event["id"]].append(event)
    starts = {track: sorted(slices, key=lambda each: each.began_us) for track, slices in tracks.items()}
    flows = []
    for steps in by_id.values():
        phases = "".join(step["ph"] for step in steps)
        _check(phases == "s" + "t" * (len(steps) - 2) + "f", "a flow is s, t ..., f", steps)
        times = [step["ts"] for step in steps]
        _check(times == sorted(times), "a flow goes forward in time", steps)
        passed = [_around(step, starts[step["pid"], step["tid"]]) for step in steps]
        begins = [each.began_us for each in passed]
        _check(begins == sorted(begins), "Perfetto turns an arrow round that leads to an earlier span", passed)
        flows.append(passed)
    return flows


def _around(step: dict[str, Any], slices: list[Slice]) -> Slice:
    place = bisect_right(slices, step["ts"], key=lambda each: each.began_us) - 1
    _check(place >= 0 and step["ts"] < slices[place].ended_us, "no span around a step of a flow", step)
    return slices[place]
