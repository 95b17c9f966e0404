"""What it costs to record a span: a lap with a ring behind it against a lap without (docs/timeline.md)."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asap_ray.batch import Batch, Request
from asap_ray.laps import Laps, Record, State, unrecorded
from asap_ray.protocol import WorkItem
from asap_ray.telemetry.recording import Recording
from asap_ray.tracks import Role, Source


@dataclass(slots=True)
class Flight:
    """A batch in a slot."""

    batch: Batch
    slot: int = 1
    layer: int = 7


def lap_s(record: Record[Any], state: State, item: Any, num_laps: int) -> float:
    """CPU seconds of one lap: others share the machine."""
    laps = Laps[Any](time.monotonic, State.IDLE, record)
    laps.lap(State.START, item)
    began_s = time.process_time()
    for _ in range(num_laps):
        laps.lap(state, item)
    return (time.process_time() - began_s) / num_laps


def measured(role: Role, state: State, item: Any, num_pairs: int, num_laps: int) -> dict[str, float]:
    """Medians over pairs taken in turn, in nanoseconds."""
    recorder: Callable[[str], Record[Any]] = Recording(Source(role=role, index=0)).stream
    record = recorder("stream")
    pairs = [(lap_s(unrecorded, state, item, num_laps), lap_s(record, state, item, num_laps)) for _ in range(num_pairs)]
    without, with_ring = (1e9 * statistics.median(each) for each in zip(*pairs, strict=True))
    differences = sorted(1e9 * (b - a) for a, b in pairs)
    return {
        "lap_ns": without,
        "recorded_lap_ns": with_ring,
        "span_ns": statistics.median(differences),
        "span_min_ns": differences[0],
        "span_max_ns": differences[-1],
    }


def main() -> None:
    """Print a table; write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer laps")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    num_pairs, num_laps = (7, 20_000) if options.quick else (21, 200_000)

    requests = tuple(Request(request_id=str(n), num_tokens=100, arrival_s=0.0) for n in range(8))
    work = WorkItem(1, 0, 7, 64, None, None, None, 0.0)
    rows = {
        "attention, dispatch": measured(Role.ATTENTION, State.DISPATCH, Flight(Batch(requests)), num_pairs, num_laps),
        "attention, a batch starts": measured(
            Role.ATTENTION, State.START, Flight(Batch(requests)), num_pairs, num_laps
        ),
        "MoE, experts": measured(Role.MOE, State.EXPERTS, work, num_pairs, num_laps),
        "MoE, starved": measured(Role.MOE, State.STARVED, None, num_pairs, num_laps),
    }
    print(f"measured, CPU time: medians of {num_pairs} pairs of {num_laps} laps in turn, ns")
    print(f"{'':28}{'lap':>8}{'recorded':>10}{'span':>8}{'min':>8}{'max':>8}")
    for name, row in rows.items():
        print(
            f"{name:28}{row['lap_ns']:8.0f}{row['recorded_lap_ns']:10.0f}"
            + "".join(f"{row[key]:8.0f}" for key in ("span_ns", "span_min_ns", "span_max_ns"))
        )
    if options.json:
        options.json.write_text(json.dumps({"kind": "measured", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
