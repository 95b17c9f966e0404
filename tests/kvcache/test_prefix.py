"""The prefix cache, case by case: blocks of four tokens."""

from __future__ import annotations

from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache, Reservation


def cache_of(num_blocks: int) -> PrefixCache:
    """An empty cache."""
    return PrefixCache(BlockPool(num_blocks, block_size=4))


def keys_of(names: str) -> list[bytes]:
    """A key a letter; each names the block and all before it."""
    return [names[: stop + 1].encode() for stop in range(len(names))]


def run(cache: PrefixCache, names: str, num_tokens: int | None = None) -> Reservation:
    """Reserve, compute and release a prompt whose full blocks are `names`, of one token more if not said otherwise."""
    num_tokens = num_tokens or 4 * len(names) + 1
    reservation = cache.reserve(names, keys_of(names), num_tokens, num_tokens)
    assert reservation is not None
    cache.publish(names, num_tokens)
    cache.release(names)
    return reservation


def test_a_prefix_that_was_computed_is_held_again() -> None:
    """The same blocks in front, and the tokens in them need no computation."""
    cache = cache_of(8)
    first = run(cache, "abc")
    second = run(cache, "abd")

    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert second.table[:2] == first.table[:2]


def test_the_last_token_is_never_cached() -> None:
    """Its row is computed, for its logits: of a prompt of two full blocks, only the first is a hit."""
    cache = cache_of(8)
    run(cache, "ab")

    assert [cache.match(keys_of("ab"), num_tokens) for num_tokens in (8, 9)] == [4, 8]


def test_a_prefix_is_found_only_once_it_was_computed() -> None:
    """A request that begins beside the first one with its prefix computes it too."""
    cache = cache_of(8)
    cache.reserve("1", keys_of("ab"), 9, 9)

    assert cache.match(keys_of("ab"), 9) == 0
    cache.publish("1", 4)
    assert cache.match(keys_of("ab"), 9) == 4
    cache.publish("1", 9)
    assert cache.match(keys_of("ab"), 9) == 8


def test_what_was_not_computed_is_not_kept() -> None:
    """A request that ends early leaves free blocks."""
    cache = cache_of(8)
    cache.reserve("1", keys_of("ab"), 9, 9)
    cache.release("1")

    assert (cache.match(keys_of("ab"), 9), cache.num_available) == (0, 8)


def test_the_least_recently_used_makes_room() -> None:
    """Of two prompts the one that was used again stays."""
    cache = cache_of(4)
    run(cache, "a")
    run(cache, "b")
    run(cache, "a")
    run(cache, "c", num_tokens=9)

    assert [cache.match(keys_of(name), 5) for name in "abc"] == [4, 0, 4]


def test_a_chain_loses_its_end_first() -> None:
    """What is left of a prompt is a prefix that can still be found."""
    cache = cache_of(4)
    run(cache, "abc")
    run(cache, "x", num_tokens=8)

    assert cache.match(keys_of("abc"), 13) == 8


def test_a_held_prefix_is_not_evicted() -> None:
    """Not even for a request that then has to wait."""
    cache = cache_of(4)
    run(cache, "abc")
    cache.reserve("holder", keys_of("ab"), 9, 9)

    assert cache.reserve("large", [], 8, 8) is None
    assert cache.match(keys_of("ab"), 9) == 8


def test_a_refusal_changes_nothing() -> None:
    """No block is evicted and nothing is counted for a request that stays queued."""
    cache = cache_of(4)
    run(cache, "abc")
    cache.reserve("holder", [], 4, 4)
    counts = (cache.counts.queried_tokens, cache.counts.evicted_blocks)

    assert cache.reserve("large", keys_of("ab"), 17, 17) is None
    assert (cache.counts.queried_tokens, cache.counts.evicted_blocks) == counts
    assert cache.match(keys_of("abc"), 13) == 12


def test_idle_blocks_of_the_own_prefix_are_no_room() -> None:
    """Four idle blocks that a request needs itself cannot hold its other tokens."""
    cache = cache_of(4)
    run(cache, "abcd", num_tokens=16)

    assert cache.reserve("more", keys_of("abcd"), 17, 17) is None


def test_room_for_the_answer_is_taken_at_the_start() -> None:
    """So that no decode step can run out."""
    cache = cache_of(4)
    reservation = cache.reserve("1", [], prompt_tokens=5, kv_tokens=12)

    assert reservation is not None
    assert (len(reservation.table), cache.num_available, cache.num_held) == (3, 1, 3)


def test_twins_are_kept_once() -> None:
    """Two requests that computed one prefix side by side: the first one's blocks stay, the other's become free."""
    cache = cache_of(6)
    for request_id in ("1", "2"):
        cache.reserve(request_id, keys_of("ab"), 9, 9)
    for request_id in ("1", "2"):
        cache.publish(request_id, 9)
        cache.release(request_id)

    assert (cache.num_available, run(cache, "abc").table[:2]) == (6, (0, 1))


def test_a_twin_outlives_what_follows_it() -> None:
    """Of two that computed block `a`, the second goes on to `b`: found only while the first one's `a` is kept."""
    cache = cache_of(5)
    cache.reserve("1", keys_of("a"), 5, 5)
    cache.reserve("2", keys_of("ab"), 9, 9)
    cache.publish("1", 5)
    cache.publish("2", 9)
    cache.release("1")
    cache.release("2")
    run(cache, "x", num_tokens=16)

    assert cache.match(keys_of("ab"), 9) == 4


def test_hits_are_counted_in_tokens() -> None:
    """The hit rate is hit tokens over the prompt tokens of all reservations."""
    cache = cache_of(8)
    run(cache, "abc")
    run(cache, "abd")

    assert (cache.counts.hit_tokens, cache.counts.queried_tokens) == (8, 26)
