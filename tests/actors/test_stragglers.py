"""A MoE device that is slower than the others is named: in a metric, and once in the log."""

from __future__ import annotations

import logging

import pytest

from asap_ray.actors.stragglers import LEAST_ITEMS, STILL_LOOKS, Stragglers
from asap_ray.batch import Duty

UNKNOWN = {"asap:moe:0": 1.0, "asap:moe:1": 1.0}


def duties(*moe_s: float, num_items: int = 100) -> dict[str, Duty]:
    """Totals of MoE devices that took so many seconds for each layer of a batch."""
    return {f"asap:moe:{e}": Duty(num_items * item_s, num_items, 10 * e) for e, item_s in enumerate(moe_s)}


def test_a_slow_device_is_told_by_how_much() -> None:
    """Twenty times the median of the others, whatever rows its experts have."""
    assert Stragglers().look(duties(0.001, 0.001, 0.02)) == pytest.approx(
        {"asap:moe:0": 0.001 / 0.0105, "asap:moe:1": 0.001 / 0.0105, "asap:moe:2": 20.0}
    )


def test_only_what_was_done_since_the_last_look_counts() -> None:
    """A device that was slow once does not stay so."""
    stragglers = Stragglers()
    stragglers.look(duties(0.001, 0.02))
    later = {name: Duty(duty.compute_s + 0.1, 200, 0) for name, duty in duties(0.001, 0.02).items()}

    assert stragglers.look(later) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_totals_that_a_device_goes_on_counting_in_are_not_taken_for_the_ones_before() -> None:
    """A device in this process may hand out its own totals."""
    stragglers, totals = Stragglers(), duties(0.001, 0.001)
    stragglers.look(totals)
    for duty in totals.values():
        for _ in range(LEAST_ITEMS):
            duty.add(0.001, 1)

    assert stragglers.look(totals) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_groups_are_not_compared() -> None:
    """A token of short prompts costs one many times what it costs another in a long batch: neither is slow."""
    totals = {"asap:attention:0": Duty(1.0, 100, 1600), "asap:attention:1": Duty(4.0, 100, 204_800)}

    assert Stragglers().look(totals | duties(0.001, 0.001)) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_a_device_so_slow_that_little_is_done_between_looks_is_told_later() -> None:
    """Five layers of 2 s in each look of 10 s: four looks have enough of them."""
    stragglers = Stragglers()
    looks = [stragglers.look(duties(0.001, 2.0, num_items=5 * look)) for look in range(1, 6)]

    slow = pytest.approx({"asap:moe:0": 0.0005, "asap:moe:1": 2000.0})
    assert looks == [UNKNOWN, UNKNOWN, UNKNOWN, slow, slow]


def test_devices_that_are_a_layer_apart_are_compared() -> None:
    """When one has enough layers the other may lack one: its last measure stands for it."""
    stragglers = Stragglers()
    stragglers.look(duties(0.001, 0.001, num_items=LEAST_ITEMS))
    ahead = {"asap:moe:0": Duty(0.04, 2 * LEAST_ITEMS, 0), "asap:moe:1": Duty(0.039, 2 * LEAST_ITEMS - 1, 0)}

    assert stragglers.look(ahead) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_a_successor_is_measured_from_its_own_start() -> None:
    """What the device before it took says nothing of it, and a count that fell is no work."""
    stragglers = Stragglers()
    stragglers.look(duties(0.001, 0.02))
    successor = {"asap:moe:0": Duty(0.2, 200, 0), "asap:moe:1": Duty(0.01, 10, 0)}
    assert stragglers.look(successor) == UNKNOWN
    successor |= {"asap:moe:1": Duty(0.11, 110, 0)}

    assert stragglers.look(successor) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_what_was_measured_before_an_idle_hour_is_forgotten() -> None:
    """A device that was slow does not ring an alarm all night; a minute without work is no night yet."""
    stragglers = Stragglers()
    looks = [stragglers.look(duties(0.001, 0.02)) for _ in range(STILL_LOOKS + 2)]

    assert [look["asap:moe:1"] for look in looks] == pytest.approx([20.0] * (STILL_LOOKS + 1) + [1.0])


def test_a_device_that_answers_no_more_is_forgotten_too() -> None:
    """It is lost, and its successor has nothing to do with it."""
    stragglers = Stragglers()
    stragglers.look(duties(0.001, 0.02))
    for _ in range(STILL_LOOKS + 1):
        look = stragglers.look({})

    assert look == UNKNOWN


def test_a_single_device_is_as_fast_as_any() -> None:
    """There is nothing to compare it with."""
    assert Stragglers().look(duties(7.0)) == {"asap:moe:0": 1.0}


def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """Slow, still slow, fast again, slow again: three lines."""
    stragglers = Stragglers()
    total_s = 0.0
    with caplog.at_level(logging.WARNING):
        for look, item_s in enumerate((0.02, 0.02, 0.001, 0.02), start=1):
            total_s += 100 * item_s
            stragglers.look({"asap:moe:0": Duty(0.1 * look, 100 * look, 0), "asap:moe:1": Duty(total_s, 100 * look, 0)})

    assert [record.message for record in caplog.records] == [
        "asap:moe:1 is slow: 20.0 times the others (0.02 s a layer, they 0.001 s)",
        "asap:moe:1 is as fast as the others again",
        "asap:moe:1 is slow: 20.0 times the others (0.02 s a layer, they 0.001 s)",
    ]
