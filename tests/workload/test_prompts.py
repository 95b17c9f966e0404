"""Token ids for trace requests."""

from __future__ import annotations

from itertools import takewhile

import pytest

from asap_ray.workload.prompts import prompt_ids
from asap_ray.workload.trace import TraceRequest, cap_lengths, scale_lengths
from asap_ray.workload.trace_file import bundled_trace, read_trace

VOCAB_SIZE = 1000


def request(input_length: int, *hash_ids: int) -> TraceRequest:
    """A request of which only the prompt matters."""
    return TraceRequest(timestamp_s=0.0, input_length=input_length, output_length=1, hash_ids=hash_ids)


def prompt(of: TraceRequest, index: int = 0, seed: int = 0) -> list[int]:
    """Its token ids."""
    return prompt_ids(of, index, VOCAB_SIZE, seed)


def num_shared(one: TraceRequest, other: TraceRequest) -> int:
    """Length of the common prefix of two prompts, as requests 0 and 1 of a trace."""
    pairs = zip(prompt(one, 0), prompt(other, 1), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_same_ids_share_exactly_their_blocks() -> None:
    """Two common blocks of 512 tokens, then they differ."""
    assert num_shared(request(1500, 0, 7, 8), request(1500, 0, 7, 9)) == 1024


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 0.05])
def test_scaling_keeps_the_shared_part(factor: float) -> None:
    """Blocks shrink with the prompts, to the rounded multiple."""
    one, other = scale_lengths([request(1500, 0, 7, 8), request(1500, 0, 7, 9)], factor)

    assert num_shared(one, other) == round(1024 * factor)


def test_capped_prompt_is_a_prefix_of_the_whole() -> None:
    """Cutting a prompt leaves its beginning as it was."""
    whole = request(1500, 0, 7, 8)
    (capped,) = cap_lengths([whole], 700)

    assert prompt(capped) == prompt(whole)[:700]


def test_prompts_without_ids_share_nothing() -> None:
    """Requests of a trace without ids are strangers."""
    assert num_shared(request(100), request(100)) == 0


def test_tail_beyond_the_blocks_is_private() -> None:
    """Where ids cover fewer tokens than the prompt has, the rest is this request's own."""
    assert num_shared(request(600, 3), request(600, 3)) == 512


def test_prompt_is_seeded() -> None:
    """The same seed gives the same prompt, another seed another."""
    assert prompt(request(600, 3), seed=1) == prompt(request(600, 3), seed=1)
    assert prompt(request(600, 3), seed=1) != prompt(request(600, 3), seed=2)


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_lengths_are_exact_and_ids_within_the_vocabulary(factor: float) -> None:
    """For every request of the bundled trace."""
    for index, each in enumerate(scale_lengths(read_trace(bundled_trace())[:60], factor)):
        ids = prompt(each, index)
        assert len(ids) == each.input_length
        assert 0 <= min(ids) <= max(ids) < VOCAB_SIZE
