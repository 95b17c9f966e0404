"""Simulations on all cores: searches ask for points one by one, and finished points are never run again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from asap_ray.evaluation.journal import Journal
from asap_ray.evaluation.points import Outcome, Point, run_point
from asap_ray.evaluation.progress import Progress

_T = TypeVar("_T")

Search = Generator[Point, Outcome, _T]
"""Yields the point it wants to know next, is sent its outcome, returns its answer."""

Submit = Callable[[Point], "Future[Outcome]"]


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that run points."""

    submit: Submit
    num_workers: int


@contextlib.contextmanager
def workers(num_workers: int) -> Iterator[Workers]:
    """Processes for a block, gone when it ends, in whatever way it ends."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_end_with_parent)
    before = set(multiprocessing.active_children())
    try:
        yield Workers(lambda point: pool.submit(run_point, point), num_workers)
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Ctrl-C is the parent's to answer, and a worker whose parent was killed must not stay behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_all(searches: Sequence[Search[Any]], out: Path, num_workers: int | None, console: Console) -> list[Any]:
    """Answer all searches with the journal in `out`, and show how far they are."""
    journal = Journal(out / "journal.jsonl")
    try:
        with (
            Progress(console, len(searches), "searches", "points simulated") as progress,
            workers(num_workers or os.cpu_count() or 1) as crew,
        ):
            return explore(searches, journal, crew, progress.update)
    except KeyboardInterrupt:
        console.print(
            f"interrupted; finished points are in {out / 'journal.jsonl'}: the same command goes on from there"
        )
        raise


def explore(
    searches: Sequence[Search[Any]],
    journal: Journal,
    crew: Workers,
    watch: Callable[[int, int], None] = lambda *_: None,
) -> list[Any]:
    """Drive all searches to their answers, in the order given; earlier ones go first.

    `watch` is called after every new point with the number of searches that have ended, and of new points.
    """
    exploration = _Exploration(searches, journal)
    num_points = 0
    in_flight: dict[Future[Outcome], Point] = {}
    while exploration.wanted:
        for point in list(exploration.wanted):
            if len(in_flight) > crew.num_workers:
                break
            if point not in in_flight.values():
                in_flight[crew.submit(point)] = point
        for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
            exploration.learn(in_flight.pop(future), future.result())
            num_points += 1
            watch(exploration.num_ended, num_points)
    return exploration.answers


class _Exploration:
    """Which points are wanted by which searches."""

    def __init__(self, searches: Sequence[Search[Any]], journal: Journal) -> None:
        self.wanted: dict[Point, list[int]] = {}
        self.answers: list[Any] = [None] * len(searches)
        self.num_ended = 0
        self._searches = searches
        self._journal = journal
        for index in range(len(searches)):
            self._advance(index, None)

    def learn(self, point: Point, outcome: Outcome) -> None:
        """A point was run."""
        self._journal.put(point, outcome)
        for index in self.wanted.pop(point):
            self._advance(index, outcome)

    def _advance(self, index: int, outcome: Outcome | None) -> None:
        """Go on with a search until it wants a point that nobody knows."""
        search = self._searches[index]
        try:
            point = next(search) if outcome is None else search.send(outcome)
            while (known := self._journal.get(point)) is not None:
                point = search.send(known)
        except StopIteration as end:
            self.answers[index] = end.value
            self.num_ended += 1
            return
        self.wanted.setdefault(point, []).append(index)


def single(point: Point) -> Search[Outcome]:
    """The search for one point."""
    return (yield point)
