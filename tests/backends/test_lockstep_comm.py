"""The items of all groups as one, and their results back to each: whatever the order they come in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from asap_ray.backends.host_lockstep import HostLockstepComm
from asap_ray.backends.threads import drive
from asap_ray.protocol import WorkItem


class Arrivals:
    """`MoEComm` whose items come in a given order; it keeps what is sent back."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self._items = iter(items)
        self.sent: list[tuple[int, list[float]]] = []

    async def dispatch_recv(self) -> WorkItem:
        """The next one."""
        return next(self._items)

    async def combine_send(self, work: WorkItem, results_RH: torch.Tensor) -> None:
        """Keep group and results."""
        self.sent.append((work.dp_group, results_RH.flatten().tolist()))


def item(dp_group: int, slot: int, layer: int, rows_of_experts: Sequence[Sequence[float]]) -> WorkItem:
    """Rows of one number each, by expert."""
    rows = [row for of_expert in rows_of_experts for row in of_expert]
    num_rows_E = torch.tensor([len(of_expert) for of_expert in rows_of_experts], dtype=torch.int32)
    return WorkItem(dp_group, slot, layer, len(rows), num_rows_E, torch.tensor(rows).view(-1, 1), None, 0.0)


def test_rows_are_grouped_by_expert_over_all_groups() -> None:
    """Each group's results come back in the order of its own rows."""
    arrivals = Arrivals([item(1, 0, 3, [[10.0], [11.0, 12.0]]), item(0, 0, 3, [[1.0, 2.0], [3.0]])])
    comm = HostLockstepComm(arrivals, num_groups=2)

    work = drive(comm.dispatch_recv(0))
    drive(comm.combine_send(work, -work.rows_RH))

    assert work.rows_RH.flatten().tolist() == [1, 2, 10, 3, 11, 12]
    assert work.num_rows_E.tolist() == [3, 3]
    assert work.layer == 3
    assert arrivals.sent == [(0, [-1, -2, -3]), (1, [-10, -11, -12])]


def test_what_comes_early_waits_for_its_turn() -> None:
    """The other slot's rows, and the next layer's of a rank that is owed nothing."""
    arrivals = Arrivals(
        [
            item(0, 1, 0, [[5.0]]),
            item(0, 0, 0, [[]]),
            item(0, 0, 1, [[]]),
            item(1, 0, 0, [[6.0]]),
            item(1, 1, 0, [[7.0]]),
            item(1, 0, 1, [[8.0]]),
        ]
    )
    comm = HostLockstepComm(arrivals, num_groups=2)

    taken = [drive(comm.dispatch_recv(slot)) for slot in (0, 1, 0)]

    assert [(work.slot, work.layer, work.rows_RH.flatten().tolist()) for work in taken] == [
        (0, 0, [6]),
        (1, 0, [5, 7]),
        (0, 1, [8]),
    ]
