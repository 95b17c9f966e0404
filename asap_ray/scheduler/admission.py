"""How many batches a DP group may take at once: the ways to keep its two slots occupied (3.3.2)."""

from __future__ import annotations

from collections.abc import Callable

from asap_ray.spec import NUM_SLOTS

Admission = Callable[[int], int]
"""Batches in flight in a group -> how many more it may take now."""


def refill(num_in_flight: int) -> int:
    """A slot gets the next batch as soon as its own is done."""
    return NUM_SLOTS - num_in_flight


def pairs(num_in_flight: int) -> int:
    """The paper's: two batches start together on an idle group, and both end before the next two."""
    return 0 if num_in_flight else NUM_SLOTS


def single(num_in_flight: int) -> int:
    """One batch at a time: no interleaving, the ablation of 5.5.1."""
    return 0 if num_in_flight else 1
