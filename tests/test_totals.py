"""What devices count, and the laps of their streams."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from asap_ray.laps import Laps, State
from asap_ray.telemetry.received import Received
from asap_ray.totals import StreamTotals, entropy_bits, stream_totals


def clock(*times_s: float) -> Iterator[float]:
    """A clock that is read at these times."""
    return iter(times_s)


def test_laps_leave_no_gap() -> None:
    """Each lap is the time since the one before it, and the recorder gets the same."""
    recorded: list[tuple[State, float, float, str | None]] = []
    times_s = clock(1.0, 3.0, 3.5)
    laps = Laps[str](lambda: next(times_s), State.STARVED, lambda *lap: recorded.append(lap))

    assert (laps.lap(State.STARVED), laps.lap(State.EXPERTS, "item")) == (2.0, 0.5)
    assert recorded == [(State.STARVED, 1.0, 3.0, None), (State.EXPERTS, 3.0, 3.5, "item")]


def test_a_lap_that_goes_on_counts_as_rest() -> None:
    """A device that has had nothing to do for an hour says so before the hour's end."""
    times_s = clock(0.0, 1.0, 3601.0)
    laps = Laps[str](lambda: next(times_s), State.STARVED)
    laps.lap(State.EXPERTS)

    assert stream_totals(laps, State.EXPERTS) == StreamTotals(work_s=1.0, starved_s=3600.0, blocked_s=0.0)


def test_no_total_shrinks() -> None:
    """Two seconds taken for rest prove to be work: the rest stays at two until there is more of it."""
    times_s = clock(0.0, 2.0, 3.0, 3.0, 8.0, 8.0)
    laps = Laps[str](lambda: next(times_s), State.STARVED)
    rests_s = [laps.totals_s()[State.STARVED]]
    laps.lap(State.EXPERTS)
    rests_s.append(laps.totals_s()[State.STARVED])
    laps.lap(State.STARVED)
    rests_s.append(laps.totals_s()[State.STARVED])

    assert rests_s == [2.0, 2.0, 5.0]


def test_received_items_are_counted_by_expert_and_step() -> None:
    """Two items of layers 0 and 2 of 3, the first one's step being from before the start."""
    received = Received(num_experts=2, num_layers=3)
    received.add(layer=0, num_tokens=4, num_rows_E=np.int32([3, 0]))
    received.add(layer=2, num_tokens=1, num_rows_E=np.int32([1, 1]))

    assert (received.num_tokens, received.num_expert_calls) == (5, 3)
    assert (received.rows_E.tolist(), received.steps_L.tolist()) == ([4, 1], [0, 1, 1])


def test_layers_in_order_have_no_entropy() -> None:
    """Steps of one, from the last layer to the first as well."""
    received = Received(num_experts=1, num_layers=3)
    for layer in (0, 1, 2, 0, 1, 2, 0):
        received.add(layer, 1, np.int32([1]))

    assert entropy_bits(received.steps_L.tolist()) == 0.0


def test_entropy_of_even_counts_is_their_logarithm() -> None:
    """Four steps as often as each other: two bits; and nothing counted is none."""
    assert (entropy_bits([5, 5, 0, 5, 5]), entropy_bits([0, 0])) == (math.log2(4), 0.0)
