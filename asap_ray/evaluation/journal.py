"""Finished points on disk, a line each, so that a sweep can be interrupted and go on where it was."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import asap_ray
from asap_ray.errors import ConfigError
from asap_ray.evaluation.points import Outcome, Point
from asap_ray.strict import build

SIMULATED_BY: Final = (
    "batch.py",
    "spec.py",
    "cost/*.py",
    "engine/*.py",
    "scheduler/*.py",
    "workload/*.py",
    "backends/virtual/*.py",
    "evaluation/points.py",
    "evaluation/simulate.py",
    "evaluation/*systems.py",
)
"""Sources that a simulated number depends on: a change to any makes every point new."""


@functools.cache
def code_version() -> str:
    """A digest of the sources above."""
    root = Path(asap_ray.__file__).parent
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SIMULATED_BY for path in root.glob(pattern)}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def key_of(point: Point) -> str:
    """The same for the same run of the same code on the same trace."""
    files = [_digest(Path(name)) for name in (point.case.trace, point.case.skew.removeprefix("counts:"))]
    text = json.dumps([code_version(), asdict(point), files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


class Journal:
    """JSON lines `{key, point, outcome}`. What a killed process left of its last line is dropped."""

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises:
            ConfigError: it cannot be written, or a line that is not the last is broken.
        """
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text() if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                path.write_text(whole)
            path.touch()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot use journal {path}: {error}") from None
        for number, line in enumerate(whole.splitlines(), start=1):
            self._read(number, line)

    def _read(self, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            self._outcomes[entry["key"]] = build(Outcome, entry["outcome"], "outcome")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{self._path}:{number}: not a line of a journal: {error!r}") from None

    def get(self, point: Point) -> Outcome | None:
        """The outcome of a finished point."""
        return self._outcomes.get(key_of(point))

    def put(self, point: Point, outcome: Outcome) -> None:
        """Keep one; it is on disk when this returns.

        Raises:
            ConfigError: the disk is full, or the like; what was kept before is kept.
        """
        key = key_of(point)
        self._outcomes[key] = outcome
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "point": asdict(point), "outcome": asdict(outcome)}) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write journal {self._path}: {error.strerror}") from None
