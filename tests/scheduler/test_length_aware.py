"""Length-aware batching (3.3.1)."""

from __future__ import annotations

import pytest

from asap_ray.batch import Batch, Request, Sampling
from asap_ray.scheduler.length_aware import LengthAwareBatcher
from asap_ray.scheduler.policy import Group
from asap_ray.spec import PrefillSpec

PREFILL = PrefillSpec(max_tokens=64, solo_tokens=32, inflection_tokens=8, max_wait_s=0.005)


def request(name: str, num_tokens: int) -> Request:
    """A request of which only the length matters."""
    return Request(request_id=name, num_tokens=num_tokens, arrival_s=0.0)


def queue(*lengths: int) -> LengthAwareBatcher:
    """Requests named a, b, c ... that all came at time 0."""
    batcher = LengthAwareBatcher(PREFILL)
    for name, num_tokens in zip("abcdef", lengths, strict=False):
        batcher.push(request(name, num_tokens), now=0.0)
    return batcher


def names(batch: Batch | None) -> str:
    """The ids of a batch's requests, joined."""
    return "".join(each.request_id for each in batch.requests) if batch else ""


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((8,), "a"),  # reaches the inflection point alone
        ((7,), ""),  # one token short
        ((4, 4, 4), "ab"),  # full at the inflection point, not at solo_tokens
        ((7, 26), "a"),  # b does not fit: closes a
        ((7, 25), "ab"),  # exactly solo_tokens
        ((33, 1), "a"),  # solo: alone at once
        ((1, 33), "a"),  # a solo closes what came before
    ],
)
def test_batch_closes_by_its_tokens(lengths: tuple[int, ...], expected: str) -> None:
    """At the moment of arrival, tokens alone decide whether a batch is closed."""
    assert names(queue(*lengths).peek(now=0.0, group=Group(0))) == expected


@pytest.mark.parametrize(("max_tokens", "expected"), [(29, "ab"), (30, "a"), (200, "a")])
def test_batch_closes_before_its_keys_and_values_exceed_the_longest_batch(max_tokens: int, expected: str) -> None:
    """Prompts of 4 whose answers are decoded keep 3 + max_tokens each: two of 32 are 64, and one alone may be more."""
    sampling = Sampling(max_tokens=max_tokens)
    batcher = LengthAwareBatcher(PREFILL)
    for name in "ab":
        batcher.push(Request(request_id=name, num_tokens=4, arrival_s=0.0, sampling=sampling), now=0.0)

    assert names(batcher.peek(now=0.0, group=Group(0))) == expected


@pytest.mark.parametrize(("max_tokens", "kv_tokens"), [(1, 0), (2, 5), (100, 103)])
def test_an_answer_of_one_token_keeps_no_keys_and_values(max_tokens: int, kv_tokens: int) -> None:
    """A longer one keeps those of its prompt of 4 and of all its tokens but the last, which is never attended."""
    sampling = Sampling(max_tokens=max_tokens)

    assert Request(request_id="r", num_tokens=4, arrival_s=0.0, sampling=sampling).kv_tokens == kv_tokens


def test_batch_closes_when_its_oldest_request_waited_enough() -> None:
    """The wait is bounded by max_wait_s, and includes it."""
    batcher = queue(3)

    assert names(batcher.peek(now=0.0049, group=Group(0))) == ""
    assert names(batcher.peek(now=0.005, group=Group(0))) == "a"


def test_taken_requests_leave_the_queue() -> None:
    """`take` removes a batch, and the tokens with it."""
    batcher = queue(4, 4, 5)
    batch = batcher.peek(now=0.0, group=Group(0))
    assert batch is not None

    batcher.take(batch)

    assert (batcher.num_requests, batcher.num_tokens) == (1, 5)


def test_returned_batch_is_next_and_whole() -> None:
    """A batch put back comes before everything else, in its old order, without waiting again."""
    batcher = queue(8)

    batcher.push_front([request("x", 2), request("y", 3)])

    assert names(batcher.peek(now=0.0, group=Group(0))) == "xya"


def test_removed_request_no_longer_counts() -> None:
    """A cancelled request frees its tokens; a second cancel finds nothing."""
    batcher = queue(3, 4)

    assert [batcher.remove("a"), batcher.remove("a")] == [True, False]
    assert batcher.num_tokens == 4
