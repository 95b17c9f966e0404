"""Cache affinity against load: seconds saved against seconds waited."""

from __future__ import annotations

import pytest

from asap_ray.kvcache.placement import Offer, patience_s, place


def seconds(past_tokens: int, num_tokens: int) -> float:
    """A millisecond a token, and attention to what is before it."""
    return 1e-3 * num_tokens + 1e-7 * num_tokens * (2 * past_tokens + num_tokens)


def offer(group: int, cached_tokens: int = 0, queue_s: float = 0.0) -> Offer:
    """What a group could do."""
    return Offer(group=group, cached_tokens=cached_tokens, queue_s=queue_s)


@pytest.mark.parametrize(("queue_s", "group"), [(0.0, 1), (0.79, 1), (0.88, 0)])
def test_a_prefix_is_worth_the_seconds_it_saves(queue_s: float, group: int) -> None:
    """800 of 1000 tokens are 0.8 s and 0.064 s of attention: a queue up to that long is worth it."""
    offers = [offer(0), offer(1, cached_tokens=800, queue_s=queue_s)]

    assert place(1000, offers, seconds).group == group


def test_of_equal_offers_the_one_with_more_cached_is_taken() -> None:
    """It leaves more room in the caches."""
    offers = [offer(0), offer(1, cached_tokens=16, queue_s=seconds(0, 16))]

    assert place(16, offers, seconds).group == 1


def test_without_a_prefix_the_shortest_queue_is_taken() -> None:
    """Of equal ones the first."""
    assert place(10, [offer(0, queue_s=2.0), offer(1, queue_s=1.0), offer(2, queue_s=1.0)], seconds).group == 1


def test_the_best_group_takes_its_prompt_at_once() -> None:
    """It leaves it to nobody."""
    here, other = offer(0, cached_tokens=800), offer(1)

    assert patience_s(here, 1000, [here, other], seconds) == 0.0


def test_a_group_leaves_a_prompt_for_what_the_prefix_elsewhere_saves() -> None:
    """0.864 s, however long it has been in the queue before."""
    here, other = offer(0), offer(1, cached_tokens=800, queue_s=0.5)

    assert patience_s(here, 1000, [here, other], seconds) == pytest.approx(0.864)


def test_a_prompt_is_not_left_for_a_long_queue() -> None:
    """Computing it all is sooner."""
    here, other = offer(0), offer(1, cached_tokens=800, queue_s=1.0)

    assert patience_s(here, 1000, [here, other], seconds) == 0.0


def test_a_prompt_is_not_left_for_a_shorter_queue_alone() -> None:
    """A group that could begin keeps nothing waiting for one that has less cached."""
    here, other = offer(0, cached_tokens=800, queue_s=2.0), offer(1, queue_s=0.5)

    assert patience_s(here, 1000, [here, other], seconds) == 0.0
