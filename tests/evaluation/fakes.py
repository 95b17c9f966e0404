"""Outcomes without a simulation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from asap_ray.evaluation.points import Bucket, Outcome, Point, paper_case
from asap_ray.evaluation.searches import Workers


def outcome(ttft_s: float) -> Outcome:
    """All requests are answered after `ttft_s`, but the slowest hundredth after three times as long."""
    return Outcome(
        num_requests=100,
        ttft_mean_s=ttft_s,
        ttft_percentiles_s=(*[ttft_s] * 98, 3 * ttft_s, 3 * ttft_s),
        attention_duty=0.5,
        moe_duty=0.5,
        buckets=(
            Bucket(up_to_tokens=512, num_requests=100, ttft_s=ttft_s, ttft_p99_s=3 * ttft_s, queue_s=0.1, kernel_s=0.1),
        ),
    )


def point(rps: float = 4.0, seed: int = 0, system: str = "asap") -> Point:
    """One of the paper's case."""
    return Point(system=system, case=paper_case(), rps=rps, duration_s=300.0, seed=seed)


class FakeWorkers:
    """Answers at once with a TTFT that is a function of the point, and remembers what it was asked."""

    def __init__(self, ttft_s: Callable[[Point], float]) -> None:
        self.asked: list[Point] = []
        self.crew = Workers(self._submit, num_workers=2)
        self._ttft_s = ttft_s

    def _submit(self, point: Point) -> Future[Outcome]:
        self.asked.append(point)
        future: Future[Outcome] = Future()
        future.set_result(outcome(self._ttft_s(point)))
        return future


def queueing() -> FakeWorkers:
    """TTFT grows with load; it is 5 s at 20 RPS for asap, at 10 for the others."""
    return FakeWorkers(lambda point: point.rps / (4 if point.system == "asap" else 2))
