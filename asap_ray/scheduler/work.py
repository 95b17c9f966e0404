"""How much work batches and groups have, under any cost of a piece."""

from __future__ import annotations

from collections.abc import Iterable

from asap_ray.batch import Batch
from asap_ray.scheduler.policy import Group
from asap_ray.scheduler.shares import Cost


def by_work(groups: Iterable[Group], cost: Cost) -> list[Group]:
    """Idle groups first, whatever the cost says; then the least work in flight; equal ones as they stand."""

    def work(group: Group) -> tuple[bool, float]:
        return bool(group.in_flight), sum(batch_work(batch, cost) for batch in group.in_flight)

    return sorted(groups, key=work)


def least_work(groups: Iterable[Group], cost: Cost) -> Group:
    """The first of `by_work`; there is one."""
    return by_work(groups, cost)[0]


def batch_work(batch: Batch, cost: Cost) -> float:
    """The work of all its pieces."""
    return sum(cost(request.past_tokens, request.num_tokens) for request in batch.requests)
