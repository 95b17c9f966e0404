"""What one DP group runs in one step of a synchronous system: pieces of prompts, cut and split by small policies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from asap_ray.batch import Batch, Request
from asap_ray.errors import ConfigError

Cost = Callable[[int, int], float]
"""(past_tokens, num_tokens) -> the work of a piece, positive, in any unit."""

UNLIMITED: Final = 1 << 62
"""Chunks this long are whole prompts."""


def tokens(past_tokens: int, num_tokens: int) -> float:  # noqa: ARG001
    """The work vLLM and the paper's baselines count (5.1). Attention seconds see the squares too (2.2.1)."""
    return num_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, stop) of a prompt."""

    prompt: Request
    start: int
    stop: int

    @property
    def request(self) -> Request:
        """What the engine runs."""
        return self.prompt.chunk(self.start, self.stop)


@dataclass(slots=True)
class Share:
    """What one group runs in one step, in order, and the work of it."""

    pieces: list[Piece] = field(default_factory=list)
    load: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)


class Cut(Protocol):
    """How much of a prompt fits into a group's step."""

    @property
    def cost(self) -> Cost:
        """The work of a piece."""

    def stop(self, start: int, num_tokens: int, load: float) -> int:
        """Where the piece that begins at `start` ends; `start` if none fits beside `load`. Beside no load one does."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of one size, the last one shorter; none is cut to fit. Of `UNLIMITED` size they are whole prompts."""

    budget: float  # of a group's step
    size: int = UNLIMITED
    cost: Cost = tokens

    def __post_init__(self) -> None:
        _check_positive(budget=self.budget, size=self.size)

    def stop(self, start: int, num_tokens: int, load: float) -> int:
        """See `Cut`."""
        stop = min(num_tokens, start + self.size)
        return stop if not load or load + self.cost(start, stop - start) <= self.budget else start


@dataclass(frozen=True, slots=True)
class Filling:
    """As much of a prompt as the budget has room for, so that busy groups carry equal work (Sarathi's chunks)."""

    budget: float
    size: int = UNLIMITED  # no piece is longer
    least: int = 256  # no piece is shorter, but the last of a prompt
    cost: Cost = tokens

    def __post_init__(self) -> None:
        _check_positive(budget=self.budget, size=self.size, least=self.least)

    def stop(self, start: int, num_tokens: int, load: float) -> int:
        """See `Cut`."""
        stops = range(start + 1, min(num_tokens, start + self.size) + 1)
        num_fit = bisect_right(stops, self.budget - load, key=lambda stop: self.cost(start, stop - start))
        if num_fit < min(self.least, len(stops)):
            return start if load else stops[min(self.least, len(stops)) - 1]
        return start + num_fit


Split = Callable[[list[Share]], list[tuple[Batch, ...]]]
"""The micro-batches of every group, as many on all."""


def undivided(shares: list[Share]) -> list[tuple[Batch, ...]]:
    """One micro-batch a step: its communication is exposed."""
    return [(_batch(share.pieces),) for share in shares]


@dataclass(frozen=True, slots=True)
class Halves:
    """Two micro-batches of equal work, the prompt in the middle cut in two: two-batch overlap.

    The second half of that prompt may run beside the first, which is a layer's attention ahead. Below `threshold`
    tokens in all, a step is not worth reading every expert's weights twice.
    """

    cost: Cost
    threshold: int

    def __call__(self, shares: list[Share]) -> list[tuple[Batch, ...]]:
        """See `Split`."""
        if sum(share.num_tokens for share in shares) < self.threshold:
            return undivided(shares)
        return [self._halves(share) for share in shares]

    def _halves(self, share: Share) -> tuple[Batch, Batch]:
        first: list[Piece] = []
        second: list[Piece] = []
        left = sum(self.cost(piece.start, piece.stop - piece.start) for piece in share.pieces) / 2
        for piece in share.pieces:
            middle = self._middle(piece, left)
            left -= self.cost(piece.start, piece.stop - piece.start)
            first += _cut(piece, piece.start, middle)
            second += _cut(piece, middle, piece.stop)
        return _batch(first), _batch(second)

    def _middle(self, piece: Piece, room: float) -> int:
        """How far the piece goes before it has done `room` work."""
        stops = range(piece.start + 1, piece.stop + 1)
        return piece.start + bisect_right(stops, room, key=lambda stop: self.cost(piece.start, stop - piece.start))


def _cut(piece: Piece, start: int, stop: int) -> Iterator[Piece]:
    if start < stop:
        yield Piece(piece.prompt, start, stop)


def _batch(pieces: list[Piece]) -> Batch:
    return Batch(tuple(piece.request for piece in pieces))


def _check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if value <= 0:
            raise ConfigError(f"{name}={value} must be positive")
