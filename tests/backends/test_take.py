"""Which ready item a MoE device takes first."""

from __future__ import annotations

import pytest

from asap_ray.backends.virtual.comm import Ready, Take, round_robin
from asap_ray.backends.virtual.stages import Rows
from asap_ray.backends.virtual.take import least_slack, most_stalled, oldest, shortest
from asap_ray.batch import Batch, Request


def item(dp_group: int, slot: int, num_tokens: int, arrival_s: float) -> Ready:
    """A message of one prompt."""
    prompt = Request(request_id=f"{dp_group}{slot}", num_tokens=num_tokens, arrival_s=arrival_s)
    return Ready(dp_group, slot, layer=0, rows=Rows(Batch((prompt,)), num_tokens), ready_s=0.0)


READY = [item(2, 0, 30, 7.0), item(0, 1, 10, 5.0), item(1, 0, 20, 6.0), item(1, 1, 40, 4.0)]


@pytest.mark.parametrize(
    ("take", "position"), [(round_robin, 2), (oldest, 0), (shortest, 1), (least_slack, 3), (most_stalled, 2)]
)
def test_item_taken_after_group_0_slot_1(take: Take, position: int) -> None:
    """In the order they became ready: 30 tokens, the fewest, the next in the scan, and the prompt that came first."""
    assert take(READY, 1) == position
