"""Prompts replayed through caches, one after another on each group."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.kvcache.placement import Cost, Offer, place
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.replay import Prompt, replay


def caches_of(*num_blocks: int) -> list[PrefixCache]:
    """Empty caches of blocks of four tokens."""
    return [PrefixCache(BlockPool(blocks, block_size=4)) for blocks in num_blocks]


def prompt(arrival_s: float, names: str) -> Prompt:
    """One token more than a full block a letter."""
    keys = tuple(names[: stop + 1].encode() for stop in range(len(names)))
    return Prompt(arrival_s=arrival_s, num_tokens=4 * len(names) + 1, keys=keys)


def seconds(past_tokens: int, num_tokens: int) -> float:  # noqa: ARG001
    """A second a token."""
    return float(num_tokens)


def second(num_tokens: int, offers: Sequence[Offer], cost: Cost) -> Offer:  # noqa: ARG001
    """Always the second group."""
    return offers[1]


def test_a_prompt_waits_for_the_one_before_it_and_hits_its_prefix() -> None:
    """The first takes 9 s; the second, there after 2 s, waits for 7 s and computes 5 of its 13 tokens."""
    served = replay([prompt(0.0, "ab"), prompt(2.0, "abc")], caches_of(8), seconds, place)

    assert [(each.cached_tokens, each.ttft_s) for each in served] == [(0, 9.0), (8, 12.0)]


def test_prompts_go_where_they_are_done_first() -> None:
    """The third waits a second for its prefix on group 0; the fourth has none there."""
    prompts = [prompt(0.0, "abcd"), prompt(0.0, "xyz"), prompt(16.0, "abcd"), prompt(16.0, "e")]
    served = replay(prompts, caches_of(16, 16), seconds, place)

    assert [each.group for each in served] == [0, 1, 0, 1]


def test_the_placement_is_an_argument() -> None:
    """Whatever it says is done."""
    served = replay([prompt(0.0, "a")] * 2, caches_of(8, 8), seconds, second)

    assert [each.group for each in served] == [1, 1]


def test_a_prompt_that_no_cache_holds_is_computed_whole() -> None:
    """And said to be so."""
    served = replay([prompt(0.0, "a"), prompt(9.0, "abc")], caches_of(2), seconds, place)

    assert [(each.is_too_long, each.cached_tokens, each.ttft_s) for each in served] == [
        (False, 0, 5.0),
        (True, 0, 13.0),
    ]
