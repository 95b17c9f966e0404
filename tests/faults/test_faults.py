"""The engine's loops through thousands of shaken runs: delays anywhere, processes that die at any await."""

from __future__ import annotations

import random

import pytest

from asap_ray.errors import PeerTimeout
from asap_ray.spec import ParallelSpec
from tests.faults.comm import Broken
from tests.faults.instance import Instance
from tests.faults.runtime import ShakenRuntime

MOST_AWAITS = 200_000
"""Far more than any run takes: one that goes on has fallen into a loop."""

LAST_FAULT = 2500
"""Awaits of a short run without faults."""

BATCHES = 3


class LiveLock(AssertionError):
    """Everybody is busy and nobody gets on."""


def simulate(seed: int, broken: Broken = Broken.NOTHING) -> list[str]:
    """One run, all of it drawn from a number: what happened, line by line.

    Raises:
        PeerTimeout: somebody waits for ever.
        AssertionError: a wrong sum, an unfinished row, an answer given twice.
    """
    runtime = ShakenRuntime(seed)
    draw = random.Random(~seed)
    parallel = ParallelSpec(dp_groups=draw.randint(1, 3), tp=draw.randint(1, 3), moe_devices=draw.randint(1, 4))
    instance = Instance(runtime, parallel, broken, BATCHES)
    for _ in range(draw.randint(0, 4)):
        who = draw.randrange(parallel.dp_groups + parallel.moe_devices)
        runtime.at_await(draw.randrange(LAST_FAULT), lambda who=who: instance.lose(who))

    def give_up() -> None:
        raise LiveLock(f"{runtime.num_events} awaits")

    runtime.at_await(MOST_AWAITS, give_up)
    try:
        runtime.run(instance.run())
    except (PeerTimeout, AssertionError) as error:
        happened = "\n".join(runtime.log)
        raise type(error)(f"seed {seed}, {parallel}: {error}\n{happened}") from None
    return runtime.log


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_every_batch_has_its_answer_whoever_dies(first: int) -> None:
    """Up to four deaths at any await of up to 3 x 3 ranks and 4 devices, seeds in a row."""
    for seed in range(first, first + 30):
        simulate(seed)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_every_batch_has_its_answer_thousands_of_times(first: int) -> None:
    """The same, for seeds that nobody has looked at."""
    for seed in range(first, first + 500):
        simulate(seed)


def test_a_seed_replays_exactly() -> None:
    """The same deaths and answers at the same awaits."""
    assert [simulate(seed) for seed in range(10)] == [simulate(seed) for seed in range(10)]


@pytest.mark.parametrize("broken", [each for each in Broken if each is not Broken.NOTHING], ids=lambda each: each.name)
def test_a_mistake_in_the_protocol_is_found(broken: Broken) -> None:
    """By one of a few hundred seeds: the simulation can fail."""
    for seed in range(600):
        try:
            simulate(seed, broken)
        except (PeerTimeout, AssertionError):
            return
    pytest.fail(f"{broken.value}: not found")
