"""How a prompt is cut into the pieces that run one after the other on its DP group."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from asap_ray.batch import Request
from asap_ray.errors import ConfigError
from asap_ray.scheduler.shares import Cost

Cut = Callable[[Request], list[Request]]
"""What a group has to compute of a prompt -> its pieces, in order; itself if it stays whole."""


def whole(request: Request) -> list[Request]:
    """No prompt is cut."""
    return [request]


@dataclass(frozen=True, slots=True)
class EqualTokens:
    """Chunks of `num_tokens`, the last one shorter: later ones are more work."""

    num_tokens: int

    def __call__(self, request: Request) -> list[Request]:
        """See `Cut`."""
        first = request.past_tokens
        stop = first + request.num_tokens
        return _pieces(request, [*range(first, stop, self.num_tokens), stop])


@dataclass(frozen=True, slots=True)
class EqualWork:
    """The fewest pieces of equal work that are at most `work` each: later ones are shorter.

    The work of a prompt's first n tokens must grow with n, and be the sum of the work of its pieces.
    """

    cost: Cost
    work: float

    def __post_init__(self) -> None:
        if self.work <= 0:
            raise ConfigError(f"work={self.work} of a piece must be positive")

    def __call__(self, request: Request) -> list[Request]:
        """See `Cut`."""
        first, num_tokens = request.past_tokens, request.num_tokens
        total = self.cost(first, num_tokens)
        num_pieces = min(num_tokens, math.ceil(total / self.work))
        ends = [
            first + bisect_left(range(num_tokens), total * number / num_pieces, key=lambda n: self.cost(first, n))
            for number in range(num_pieces)
        ]
        return _pieces(request, [*ends, first + num_tokens])


def _pieces(request: Request, ends: list[int]) -> list[Request]:
    if len(ends) == 2:  # all of it
        return [request]
    return [request.chunk(start, stop) for start, stop in pairwise(ends)]
