"""A device that is slower than the others of its kind is named: in a metric, and once in the log."""

from __future__ import annotations

import logging

import pytest

from asap_ray.actors.stragglers import LEAST_ITEMS, STILL_LOOKS, Stragglers
from asap_ray.totals import Pace, Spent, size_of

UNKNOWN = {"asap:moe:0": 1.0, "asap:moe:1": 1.0}


def total(seconds: float, num_layers: int) -> Pace:
    """Of a MoE device."""
    return Pace({"": Spent(seconds, num_layers)})


def totals(*moe_s: float, num_items: int = 100) -> dict[str, Pace]:
    """Of MoE devices that took so many seconds for each layer of a batch."""
    return {f"asap:moe:{e}": total(num_items * item_s, num_items) for e, item_s in enumerate(moe_s)}


def groups(*of_sizes: dict[str, tuple[float, int]]) -> dict[str, Pace]:
    """Totals of DP groups: by size the seconds of a layer, and how many there were."""
    return {
        f"asap:attention:{i}": Pace(
            {size: Spent(layer_s * number, number) for size, (layer_s, number) in sizes.items()}
        )
        for i, sizes in enumerate(of_sizes)
    }


def test_a_slow_device_is_told_by_how_much() -> None:
    """Twenty times the median of the others, whatever rows its experts have."""
    assert Stragglers().look(totals(0.001, 0.001, 0.02)) == pytest.approx(
        {"asap:moe:0": 0.001 / 0.0105, "asap:moe:1": 0.001 / 0.0105, "asap:moe:2": 20.0}
    )


def test_only_what_was_done_since_the_last_look_counts() -> None:
    """A device that was slow once does not stay so."""
    stragglers = Stragglers()
    stragglers.look(totals(0.001, 0.02))
    later = {name: total(before.by_size[""].seconds + 0.1, 200) for name, before in totals(0.001, 0.02).items()}

    assert stragglers.look(later) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_totals_that_a_device_goes_on_counting_in_are_not_taken_for_the_ones_before() -> None:
    """A device in this process may hand out its own totals."""
    stragglers, counting = Stragglers(), totals(0.001, 0.001)
    stragglers.look(counting)
    for pace in counting.values():
        for _ in range(LEAST_ITEMS):
            pace.add("", 0.001)

    assert stragglers.look(counting) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_groups_are_compared_by_layers_of_one_size() -> None:
    """Group 1 has the longer prompts and is no slower; group 2 takes six times as long for prompts of either size."""
    mixed = groups(
        {"5.4": (0.001, 90), "9.8": (0.02, 10)},
        {"5.4": (0.001, 10), "9.8": (0.02, 90), "12.11": (0.3, 50)},
        {"5.4": (0.006, 50), "9.8": (0.12, 50)},
    )
    slowness = Stragglers().look(mixed | totals(7.0))

    assert slowness["asap:attention:2"] == pytest.approx(6.0)
    assert slowness["asap:attention:0"] == pytest.approx(0.29 / (90 * 0.0035 + 10 * 0.07))
    assert slowness["asap:attention:1"] == pytest.approx(1.81 / (10 * 0.0035 + 90 * 0.07))


def test_groups_without_a_size_in_common_are_not_compared() -> None:
    """A token of short prompts costs one many times what it costs another in a long batch: neither is slow."""
    apart = groups({"5.4": (0.01, 100)}, {"12.11": (0.4, 100), "5.4": (0.0001, LEAST_ITEMS - 1)})

    assert Stragglers().look(apart)["asap:attention:1"] == 1.0


@pytest.mark.parametrize(("num_rows", "mean_context", "size"), [(1, 0, "1.0"), (255, 128, "8.8"), (256, 255, "9.8")])
def test_sizes_are_powers_of_two(num_rows: int, mean_context: int, size: str) -> None:
    """Rows of a pass, and how many tokens each attends to."""
    assert size_of(num_rows, mean_context) == size


def test_a_device_so_slow_that_little_is_done_between_looks_is_told_later() -> None:
    """Five layers of 2 s in each look of 10 s: four looks have enough of them."""
    stragglers = Stragglers()
    looks = [stragglers.look(totals(0.001, 2.0, num_items=5 * look)) for look in range(1, 6)]

    slow = pytest.approx({"asap:moe:0": 0.0005, "asap:moe:1": 2000.0})
    assert looks == [UNKNOWN, UNKNOWN, UNKNOWN, slow, slow]


def test_devices_that_are_a_layer_apart_are_compared() -> None:
    """When one has enough layers the other may lack one: its last measure stands for it."""
    stragglers = Stragglers()
    stragglers.look(totals(0.001, 0.001, num_items=LEAST_ITEMS))
    ahead = {"asap:moe:0": total(0.04, 2 * LEAST_ITEMS), "asap:moe:1": total(0.039, 2 * LEAST_ITEMS - 1)}

    assert stragglers.look(ahead) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_a_successor_is_measured_from_its_own_start() -> None:
    """What the device before it took says nothing of it, and a count that fell is no work."""
    stragglers = Stragglers()
    stragglers.look(totals(0.001, 0.02))
    successor = {"asap:moe:0": total(0.2, 200), "asap:moe:1": total(0.01, 10)}
    assert stragglers.look(successor) == UNKNOWN
    successor |= {"asap:moe:1": total(0.11, 110)}

    assert stragglers.look(successor) == pytest.approx({"asap:moe:0": 1.0, "asap:moe:1": 1.0})


def test_what_was_measured_before_an_idle_hour_is_forgotten() -> None:
    """A device that was slow does not ring an alarm all night; a minute without work is no night yet."""
    stragglers = Stragglers()
    looks = [stragglers.look(totals(0.001, 0.02)) for _ in range(STILL_LOOKS + 2)]

    assert [look["asap:moe:1"] for look in looks] == pytest.approx([20.0] * (STILL_LOOKS + 1) + [1.0])


def test_a_device_that_answers_no_more_is_forgotten_too() -> None:
    """It is lost, and its successor has nothing to do with it."""
    stragglers = Stragglers()
    stragglers.look(totals(0.001, 0.02))
    for _ in range(STILL_LOOKS + 1):
        look = stragglers.look({})

    assert look == UNKNOWN


def test_a_single_device_is_as_fast_as_any() -> None:
    """There is nothing to compare it with."""
    assert Stragglers().look(totals(7.0)) == {"asap:moe:0": 1.0}


def test_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """Slow, still slow, fast again, slow again: three lines."""
    stragglers = Stragglers()
    seconds = 0.0
    with caplog.at_level(logging.WARNING):
        for look, item_s in enumerate((0.02, 0.02, 0.001, 0.02), start=1):
            seconds += 100 * item_s
            stragglers.look({"asap:moe:0": total(0.1 * look, 100 * look), "asap:moe:1": total(seconds, 100 * look)})

    assert [record.message for record in caplog.records] == [
        "asap:moe:1 is slow: 20.0 times the others (0.02 s a layer, they 0.001 s)",
        "asap:moe:1 is as fast as the others again",
        "asap:moe:1 is slow: 20.0 times the others (0.02 s a layer, they 0.001 s)",
    ]
