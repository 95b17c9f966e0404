"""The blocks of one attention group, case by case: four blocks of four tokens."""

from __future__ import annotations

import pytest

from asap_ray.errors import ConfigError, RequestError
from asap_ray.kvcache.pool import BlockPool


def test_a_request_gets_blocks_for_all_its_tokens() -> None:
    """Nine tokens are two full blocks and a begun one."""
    pool = BlockPool(num_blocks=4, block_size=4)

    assert pool.reserve("a", 9) == (0, 1, 2)
    assert (pool.table("a"), pool.num_free) == ((0, 1, 2), 1)


def test_running_out_is_a_value() -> None:
    """None says: queue the request; nothing was taken."""
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.reserve("a", 9)

    assert pool.reserve("b", 5) is None
    assert pool.num_free == 1


def test_released_blocks_are_free() -> None:
    """All of them, for whoever comes next."""
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.reserve("a", 16)

    assert pool.release("a") == []
    assert pool.num_free == 4


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    """Two requests with one prefix hold its block together."""
    pool = BlockPool(num_blocks=4, block_size=4)
    table = pool.reserve("a", 8)
    assert table is not None
    pool.reserve("b", 8, shared=table[:1])

    pool.release("a")
    assert pool.num_free == 2
    pool.release("b")
    assert pool.num_free == 4


def test_a_kept_block_is_idle_when_nobody_holds_it() -> None:
    """It is not free until it is dropped."""
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.reserve("a", 8)
    pool.keep(0)

    assert pool.release("a") == [0]
    assert (pool.is_idle(0), pool.num_free) == (True, 3)
    pool.drop(0)
    assert pool.num_free == 4


def test_idle_blocks_are_named_from_the_end_of_the_prompt() -> None:
    """So that a cache that gives up the first one first loses ends of prompts."""
    pool = BlockPool(num_blocks=4, block_size=4)
    for block in pool.reserve("a", 12) or ():
        pool.keep(block)

    assert pool.release("a") == [2, 1, 0]


def test_a_swapped_block_is_held_in_the_place_of_the_own_one() -> None:
    """The table stays, for a pass may be reading it; both are held until the request lets go."""
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.reserve("a", 4)
    pool.keep(0)
    pool.reserve("b", 8)
    pool.swap("b", 0, 0)

    assert pool.release("a") == []
    assert (pool.table("b"), pool.num_free) == ((1, 2), 1)
    assert pool.release("b") == [0]
    assert pool.num_free == 3


def test_what_can_never_fit_is_refused() -> None:
    """By its length and the room there is: queued, it would wait for ever."""
    with pytest.raises(RequestError, match="up to 17 tokens; the cache of an attention group holds 16"):
        BlockPool(num_blocks=4, block_size=4).check(17)


def test_a_pool_without_blocks_is_refused() -> None:
    """A size of zero is a mistake of the configuration."""
    with pytest.raises(ConfigError, match="num_blocks=0"):
        BlockPool(num_blocks=0, block_size=4)
