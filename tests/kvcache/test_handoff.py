"""Leases on blocks that wait to be pulled; the clock is an argument."""

from __future__ import annotations

import pytest

from asap_ray.errors import ConfigError
from asap_ray.kvcache.handoff import LeaseCounts, Leases
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache


def prefilled(*request_ids: str) -> PrefixCache:
    """A cache of eight blocks in which each request holds two, computed and with nothing to share."""
    cache = PrefixCache(BlockPool(num_blocks=8, block_size=4))
    for request_id in request_ids:
        cache.reserve(request_id, [], 8, 8)
    return cache


def test_blocks_stay_until_they_are_pulled() -> None:
    """And then they are let go."""
    cache = prefilled("a")
    leases = Leases(cache)
    leases.grant("a", now=0.0)

    assert (leases.expire(59.9), cache.num_held) == ([], 2)
    assert (leases.pulled("a"), cache.num_held) == (True, 0)


def test_a_lease_ends_after_a_minute() -> None:
    """Unless another time is asked for."""
    cache = prefilled("a")
    leases = Leases(cache)
    leases.grant("a", now=100.0)

    assert (leases.wake_at(), leases.expire(160.0), cache.num_held) == (160.0, ["a"], 0)


def test_a_heartbeat_begins_a_lease_anew() -> None:
    """A decode instance that queues a request says so every few seconds."""
    cache = prefilled("a", "b")
    leases = Leases(cache, lease_s=10.0)
    leases.grant("a", now=0.0)
    leases.grant("b", now=1.0)

    assert leases.heartbeat("a", now=9.0)
    assert (leases.expire(11.0), leases.wake_at(), cache.num_held) == (["b"], 19.0, 2)


def test_an_abort_frees_the_blocks() -> None:
    """At once."""
    cache = prefilled("a")
    leases = Leases(cache)
    leases.grant("a", now=0.0)

    assert (leases.abort("a"), cache.num_available, leases.num_open) == (True, 8, 0)


def test_every_rank_of_the_decode_side_has_to_pull() -> None:
    """The blocks stay until the last of them says that it has."""
    cache = prefilled("a")
    leases = Leases(cache)
    leases.grant("a", now=0.0)

    assert (leases.pulled("a", "rank 0", num_consumers=2), cache.num_held) == (False, 2)
    assert (leases.pulled("a", "rank 1", num_consumers=2), cache.num_held) == (True, 0)


def test_a_rank_that_says_so_twice_has_pulled_once() -> None:
    """A notification that is repeated must not speak for another rank."""
    cache = prefilled("a")
    leases = Leases(cache)
    leases.grant("a", now=0.0)

    assert [leases.pulled("a", "rank 0", num_consumers=2) for _ in range(3)] == [False] * 3
    assert cache.num_held == 2


def test_a_pulled_prefix_stays_in_the_cache() -> None:
    """Handed off, it can be hit again."""
    cache = PrefixCache(BlockPool(num_blocks=8, block_size=4))
    cache.reserve("a", [b"1", b"2"], 9, 9)
    cache.publish("a", 9)
    leases = Leases(cache)
    leases.grant("a", now=0.0)
    leases.pulled("a")

    assert cache.match([b"1", b"2"], 9) == 8


def test_a_lease_that_has_ended_is_no_error() -> None:
    """The peer cannot know: messages about it change nothing."""
    cache = prefilled("a", "b")
    leases = Leases(cache, lease_s=1.0)
    leases.grant("a", now=0.0)
    leases.expire(1.0)

    assert (leases.heartbeat("a", now=1.0), leases.pulled("a"), leases.abort("a")) == (False, False, False)
    assert cache.num_held == 2


def test_ends_are_counted_by_their_reason() -> None:
    """One pulled, one aborted, one expired, one still open."""
    leases = Leases(prefilled("a", "b", "c", "d"), lease_s=1.0)
    for request_id, now in (("a", 0.0), ("b", 0.0), ("c", 0.0), ("d", 0.5)):
        leases.grant(request_id, now)
    leases.pulled("a")
    leases.abort("b")
    leases.expire(1.0)

    assert (leases.counts, leases.num_open) == (LeaseCounts(granted=4, pulled=1, aborted=1, expired=1), 1)


def test_without_leases_nothing_is_to_be_waited_for() -> None:
    """No time to wake at."""
    assert Leases(prefilled()).wake_at() is None


def test_a_lease_of_no_time_is_refused() -> None:
    """By its value."""
    with pytest.raises(ConfigError, match=r"lease_s=0\.0 must be positive"):
        Leases(prefilled(), lease_s=0.0)
