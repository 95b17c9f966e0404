"""What a running instance counts equals what went through it."""

from __future__ import annotations

import numpy as np

from asap_ray.laps import State
from asap_ray.telemetry.recording import SPAN
from tests.engine.test_host import whole
from tests.engine.toys import Toy, ToyInstance, random_batch


def test_every_device_counts_what_it_received() -> None:
    """Two groups, a batch each: K rows a token and layer, each on the device of its expert."""
    toy = Toy(whole(dp_groups=2, tp=1, moe_devices=2))
    model = toy.whole.model
    with ToyInstance(toy) as running:
        running.ask([(i, random_batch(str(i), [5, 3], seed=i)) for i in range(2)])

    rows = [sum(received.rows_E) for received in running.received]
    calls = [sum(received.steps_L) for received in running.received]
    assert sum(rows) == 16 * model.num_layers * model.top_k
    assert calls == [2 * model.num_layers] * 2
    assert max(received.num_tokens for received in running.received) <= 16 * model.num_layers


def test_the_laps_of_a_rank_are_all_of_its_time() -> None:
    """A batch is started and finished once, and every layer has attention, dispatch and combine in between."""
    toy = Toy(whole(dp_groups=1, tp=1, moe_devices=1))
    with ToyInstance(toy) as running:
        running.ask([(0, random_batch("a", [4], seed=0))])

    spans = np.frombuffer(running.recordings.timeline().tracks[0].spans, SPAN)
    layer = [State.ATTENTION, State.DISPATCH, State.COMBINE]
    working = [State(state) for state in spans["state"] if state != State.IDLE]
    assert working == [State.START, *layer * toy.whole.model.num_layers, State.FINISH]
    assert spans["began_s"][1:].tolist() == spans["ended_s"][:-1].tolist()
