"""What a running instance counts equals what went through it."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pytest

from asap_ray.backends.threads import ThreadRuntime, drive
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.engine import attention
from asap_ray.errors import Closed
from asap_ray.laps import Laps, State
from asap_ray.protocol import NOBODY, Finished
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


class OneLayer:
    """Door, stage and primitives of a rank that prefills prompts of 5 and 3 tokens; the first one gets two tokens."""

    num_layers = 1

    def __init__(self) -> None:
        self._batches = [random_batch("a", [5, 3], seed=0)]

    async def admit(self, occupied: tuple[Batch, ...]) -> Batch | None:
        if not occupied and not self._batches:
            raise Closed
        return self._batches.pop() if self._batches else None

    async def start(self, batch: Batch) -> int:  # noqa: ARG002
        return 1

    async def attend(self, state: int, layer: int, expert_out: None) -> None:
        pass

    async def finish(self, state: int, expert_out: None, unwanted: Set[str]) -> Finished:  # noqa: ARG002
        if state == 2:
            return Finished((Token(request_id="a.0", token_id=1, finish_reason="length"),), None)
        done = Token(request_id="a.1", token_id=1, finish_reason="length")
        return Finished((Token(request_id="a.0", token_id=1), done), state + 1)

    async def dispatch_send(self, slot: int, layer: int, routed: None) -> None:
        pass

    async def combine_recv(self, slot: int) -> None:
        pass

    def unwanted(self) -> Set[str]:
        return NOBODY

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        pass


def test_a_decode_pass_counts_a_row_for_each_request_that_goes_on() -> None:
    """Eight of the prompts and one of the step after them, not their prompts again; so does the size of each.

    A row of the prompts attends to one other on average, that of the step to 6.
    """
    runtime, one_layer = ThreadRuntime(), OneLayer()
    rank = attention.Rank(runtime, one_layer, one_layer, one_layer, Laps(runtime.now, State.IDLE))
    with pytest.raises(Closed):
        drive(attention.serve(rank))

    assert (rank.duty.num_items, rank.duty.num_rows) == (4, 9)
    assert {size: spent.num_layers for size, spent in rank.pace.by_size.items()} == {"4.1": 1, "1.3": 1}
