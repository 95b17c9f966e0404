"""Other ways for a MoE device to choose among ready items than its round-robin scan (docs/policies.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from asap_ray.backends.virtual.comm import Ready


def oldest(ready: Sequence[Ready], last: int) -> int:  # noqa: ARG001
    """The one that has been ready for longest."""
    return 0


def shortest(ready: Sequence[Ready], last: int) -> int:  # noqa: ARG001
    """The one with the fewest tokens."""
    return min(range(len(ready)), key=lambda position: ready[position].rows.num_tokens)


def least_slack(ready: Sequence[Ready], last: int) -> int:  # noqa: ARG001
    """The one with the prompt that came first: with one SLO for all, the deadline that is nearest."""
    return min(
        range(len(ready)), key=lambda position: min(each.arrival_s for each in ready[position].rows.batch.requests)
    )


def most_stalled(ready: Sequence[Ready], last: int) -> int:  # noqa: ARG001
    """The oldest of a group both of whose batches wait here: its attention ranks have nothing to do."""
    waiting = Counter(item.dp_group for item in ready)
    return min(range(len(ready)), key=lambda position: (-waiting[ready[position].dp_group], position))
