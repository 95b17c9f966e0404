"""Blocks of a trace's prompts: which are the same, and what could be saved of them."""

from __future__ import annotations

import pytest

from asap_ray.workload.prompts import prompt_ids
from asap_ray.workload.trace import TraceRequest
from asap_ray.workload.trace_blocks import ideal_hits, trace_block_keys
from asap_ray.workload.trace_file import bundled_trace, read_trace


def request(input_length: int, *hash_ids: int, block_tokens: float = 4) -> TraceRequest:
    """One with blocks of four tokens."""
    return TraceRequest(
        timestamp_s=0.0, input_length=input_length, output_length=1, hash_ids=hash_ids, block_tokens=block_tokens
    )


def test_a_block_is_named_by_the_id_of_its_end_and_where_it_ends() -> None:
    """Blocks of two tokens divide those of the trace."""
    assert trace_block_keys(request(7, 5, 6), 2) == (b"5:2", b"5:4", b"6:6")


def test_blocks_need_not_divide_those_of_the_trace() -> None:
    """One of three tokens ends in the first id, the next in the second: that id stands for all before it."""
    assert trace_block_keys(request(8, 5, 6), 3) == (b"5:3", b"6:6")


def test_scaled_blocks_end_where_the_prompts_do() -> None:
    """Blocks of 2.5 tokens end after 2, 5, 8 (rounded to even)."""
    assert trace_block_keys(request(8, 5, 6, 7, block_tokens=2.5), 1) == tuple(
        f"{hash_id}:{stop}".encode() for stop, hash_id in enumerate([5, 5, 6, 6, 6, 7, 7, 7], start=1)
    )


def test_tokens_that_no_id_covers_have_no_key() -> None:
    """They are like no others; so is a prompt without ids."""
    assert trace_block_keys(request(12, 5), 2) == (b"5:2", b"5:4")
    assert trace_block_keys(request(12), 2) == ()


@pytest.mark.parametrize("block_size", [7, 16])
def test_keys_are_equal_where_the_replayed_prompts_are(block_size: int) -> None:
    """`prompt_ids` of a trace made small share the prefixes that its keys share: 200 requests, all pairs of blocks."""
    first = [
        TraceRequest(
            timestamp_s=0.0,
            input_length=max(1, each.input_length // 128),
            output_length=1,
            hash_ids=each.hash_ids,
            block_tokens=each.block_tokens / 128,
        )
        for each in read_trace(bundled_trace())[:200]
    ]
    seen: dict[bytes, list[int]] = {}
    for index, each in enumerate(first):
        ids = prompt_ids(each, index, vocab_size=1000, seed=0)
        for number, key in enumerate(trace_block_keys(each, block_size), start=1):
            assert seen.setdefault(key, ids[: number * block_size]) == ids[: number * block_size]


def test_the_ideal_counts_every_block_that_came_before() -> None:
    """The longest leading run of known ids, at most the prompt: the second prompt's last block is not full."""
    assert ideal_hits([request(8, 1, 2), request(7, 1, 2), request(8, 1, 3), request(8, 3, 1)]) == [0, 7, 4, 8]


def test_the_bundled_traces_ideal() -> None:
    """10 % of its prompt tokens came before."""
    trace = read_trace(bundled_trace())

    assert round(sum(ideal_hits(trace)) / sum(each.input_length for each in trace), 3) == 0.101
