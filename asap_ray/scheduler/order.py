"""Who goes first. A key that does not change with time lets nobody starve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from asap_ray.batch import Request
from asap_ray.errors import ConfigError
from asap_ray.scheduler.shares import Cost

Order = Callable[[Request], float]
"""The key of a prompt; the least goes first."""

HEAD_START_S: Final = 5.0
"""The SLO of 5.1: nobody is passed by what comes later than that after it."""


def first_come(request: Request) -> float:
    """The order of arrival."""
    return request.arrival_s


@dataclass(frozen=True, slots=True)
class ShortestFirst:
    """Shorter prompts first; each token costs `token_s` of standing, so that a long prompt's turn comes."""

    token_s: float

    def __call__(self, request: Request) -> float:
        """See `Order`."""
        return request.arrival_s + self.token_s * request.num_tokens


@dataclass(frozen=True, slots=True)
class HeadStart:
    """The less work a prompt is, the earlier it counts as come: up to `bound_s` before one of `full_work` or more.

    A prompt is passed only by prompts that come less than `bound_s` after it, so that is how long others can keep it
    waiting beyond its own turn. All prompts of `full_work` or more go in the order of arrival.
    """

    cost: Cost
    full_work: float
    bound_s: float = HEAD_START_S

    def __post_init__(self) -> None:
        if self.full_work <= 0 or self.bound_s < 0:
            raise ConfigError(f"full_work={self.full_work} must be positive and bound_s={self.bound_s} at least 0")

    def __call__(self, request: Request) -> float:
        """See `Order`."""
        return request.arrival_s + self.bound_s * min(1.0, self.cost(0, request.num_tokens) / self.full_work)
