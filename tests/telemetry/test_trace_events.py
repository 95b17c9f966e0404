"""Chrome traces of real and of virtual runs, read by the rules of the format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.evaluation.points import run_of
from asap_ray.telemetry.recording import Recordings
from asap_ray.telemetry.trace_events import seconds_covered, write_trace
from asap_ray.tracks import Timeline
from tests.engine.test_host import whole
from tests.engine.toys import Toy, ToyInstance, random_batch
from tests.evaluation.fakes import point
from tests.telemetry.trace_reader import Trace, read_trace

ROUND = ["attention", "dispatch", "receive", "experts", "send"]
NUM_LAYERS = 4


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two groups of two ranks, two MoE devices, four batches, as threads."""
    toy = Toy(whole(dp_groups=2, tp=2, moe_devices=2))
    batches = [(n % 2, random_batch(f"request-{n}", [9, 8], seed=n)) for n in range(4)]
    with ToyInstance(toy) as running:
        running.ask(batches)
    return written(tmp_path_factory, running.recordings.timeline())


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The paper's instance for five seconds."""
    recordings = Recordings()
    run_of(replace(point(), duration_s=5.0), recordings.device)
    return written(tmp_path_factory, recordings.timeline())


def written(tmp_path_factory: pytest.TempPathFactory, timeline: Timeline) -> Trace:
    """The file, read again."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(path, timeline)
    return read_trace(path)


def test_a_process_a_device_and_a_track_a_stream(real: Trace) -> None:
    """Four ranks with one stream and their slots, two MoE devices with three streams."""
    tracks = {(each.process, each.thread) for each in real.slices if not each.thread.startswith("slot")}

    ranks = {(f"attention {i} rank {j}", "attention") for i in (0, 1) for j in (0, 1)}
    assert tracks == ranks | {(f"moe {e}", stream) for e in (0, 1) for stream in ("receive", "compute", "send")}


def test_a_flow_goes_through_every_layer_of_a_batch(real: Trace) -> None:
    """For each of 4 batches, 2 ranks and 2 devices: NUM_LAYERS rounds, then the logits."""
    assert [[each.name for each in flow] for flow in real.flows] == [[*ROUND * NUM_LAYERS, "finish"]] * 16


def test_a_flow_stays_with_its_batch(real: Trace) -> None:
    """Every span it passes is of the same batch, and the layers come in order."""
    for flow in real.flows:
        assert len({each.args["batch"] for each in flow}) == 1
        assert [int(each.args["layer"]) for each in flow] == [n // len(ROUND) for n in range(len(flow))]


def test_a_request_is_found_by_its_id(real: Trace) -> None:
    """In the slot of each rank of its group, over all layers of its batch."""
    found = [each for each in real.slices if "request-2.1" in each.args.get("requests", "").split()]

    assert [each.process for each in found] == ["attention 0 rank 0", "attention 0 rank 1"]
    for each in found:
        (batch,) = {each.name.removeprefix("batch ")}
        inside = [span for span in real.slices if span.args.get("batch") == batch and span.process == each.process]
        assert each.began_us <= min(span.began_us for span in inside)
        assert each.ended_us >= max(span.ended_us for span in inside)


def test_virtual_time_gives_the_same_spans(virtual: Trace, real: Trace) -> None:
    """The same names of the same streams, so that both can be laid side by side."""

    def kinds(trace: Trace) -> set[tuple[str, str]]:
        return {(each.thread, each.name) for each in trace.slices if each.args.get("batch")}

    assert kinds(virtual) == kinds(real) - {("attention", "start"), ("attention", "finish")}  # which take no time there


def test_a_flow_in_virtual_time_reaches_the_last_layer(virtual: Trace) -> None:
    """Of the batches that ended: the dispatch of all 58 layers."""
    finished = max(virtual.flows, key=len)

    assert sum(each.name == "dispatch" for each in finished) == max(int(each.args["layer"]) for each in finished) + 1


def test_a_synchronous_system_is_one_track_a_worker(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both sides of a layer one after the other."""
    recordings = Recordings()
    run_of(replace(point(system="default_vllm"), duration_s=2.0), recordings.device)
    trace = written(tmp_path_factory, recordings.timeline())

    assert {each.process.split()[0] for each in trace.slices} == {"worker"}
    assert {"attention", "dispatch", "experts"} <= {each.name for each in trace.slices}


def test_nothing_recorded_is_a_trace_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An instance that has just started."""
    trace = written(tmp_path_factory, Timeline(tracks=()))

    assert (trace.slices, trace.flows, seconds_covered(Timeline(tracks=()))) == ([], [], 0.0)
