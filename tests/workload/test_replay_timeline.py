"""A replay that also writes what the devices did."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from asap_ray.actors.endpoints import Endpoint, ReadTimeline
from asap_ray.actors.replay_job import Job
from asap_ray.dashboards.looks import Look
from asap_ray.errors import ConfigError
from asap_ray.laps import State
from asap_ray.telemetry.recording import Recordings
from asap_ray.tracks import Role, Source, Timeline
from asap_ray.workload.client import Reply
from asap_ray.workload.http_target import ServedModel
from asap_ray.workload.shaping import Shaping
from tests.telemetry.trace_reader import read_trace


class Instant:
    """Answers at once."""

    async def send(self, _prompt_ids: list[int], _max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        on_first_token()
        return Reply(200, None, {})


@contextlib.asynccontextmanager
async def endpoint(timeline: ReadTimeline) -> AsyncIterator[Endpoint]:
    """An instance that answers at once and has this timeline."""

    async def look() -> Look:
        return Look()

    yield Endpoint(Instant(), ServedModel("tiny", None, 16), look, timeline)


def job(tmp_path: Path) -> Job:
    """One request, at once."""
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 3, "output_length": 1}\n')
    return Job(
        trace=tmp_path / "trace.jsonl", shaping=Shaping(), out=tmp_path / "replay", timeline=tmp_path / "timeline.json"
    )


async def recorded(_last_s: float) -> Timeline:
    """A second of one stream."""
    recordings = Recordings()
    recordings.device(Source(role=Role.MOE, index=0))("send")(State.STARVED, 0.0, 1.0, None)
    return recordings.timeline()


def test_a_replay_writes_the_timeline(tmp_path: Path) -> None:
    """Beside its report."""
    report = job(tmp_path).run(endpoint(recorded))

    (span,) = read_trace(tmp_path / "timeline.json").slices
    assert (len(report.results), span.process, span.thread, span.name) == (1, "moe 0", "send", "starved")


def test_an_instance_that_does_not_record_is_refused_before_the_first_request(tmp_path: Path) -> None:
    """Not after the last one."""

    async def nothing(_last_s: float) -> Timeline:
        raise ConfigError("http://other/timeline: HTTP 404: Not Found")

    with pytest.raises(ConfigError, match="404"):
        job(tmp_path).run(endpoint(nothing))

    assert not (tmp_path / "replay" / "replay.json").exists()


def test_an_instance_that_is_gone_at_the_end_does_not_cost_the_report(tmp_path: Path) -> None:
    """The results are there, the timeline is not."""
    asked: list[float] = []

    async def once(last_s: float) -> Timeline:
        asked.append(last_s)
        if len(asked) > 1:
            raise ConfigError("gone")
        return Timeline(tracks=())

    report = job(tmp_path).run(endpoint(once))

    assert (len(report.results), (tmp_path / "timeline.json").exists()) == (1, False)
