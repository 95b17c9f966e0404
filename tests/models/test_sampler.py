"""Choices of tokens: greedy, nucleus, seeded; log-probabilities and ends."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asap_ray.batch import Request, Sampling
from asap_ray.models.sampler import Sampler, token_of

LOGITS = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
FLOAT32 = torch.finfo(torch.float32).max


def drawn(count: int, **sampling: float | int) -> list[int]:
    """`count` choices of one request in a row."""
    sampler = Sampler(Sampling(**sampling))
    return [sampler.choose(LOGITS.clone()) for _ in range(count)]


def request(**sampling: object) -> Request:
    """A request of one token."""
    return Request(request_id="r", num_tokens=1, arrival_s=0.0, sampling=Sampling(**sampling))


def test_temperature_zero_is_greedy() -> None:
    """The likeliest token, always."""
    assert set(drawn(20)) == {0}


def test_temperature_one_draws_from_the_models_own_distribution() -> None:
    """Shares of 4000 draws are within 3 % of the probabilities."""
    choices = torch.tensor(drawn(4000, temperature=1.0, seed=1))

    torch.testing.assert_close(choices.bincount(minlength=4) / 4000, LOGITS.exp(), atol=0.03, rtol=0)


@pytest.mark.parametrize(("top_p", "nucleus"), [(0.0, {0}), (0.4, {0}), (0.65, {0, 1}), (0.75, {0, 1, 2})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, nucleus: set[int]) -> None:
    """0.4, 0.3, 0.2, 0.1: two tokens make 0.7, three 0.9."""
    assert set(drawn(300, temperature=1.0, top_p=top_p, seed=2)) == nucleus


def test_a_seed_fixes_the_draws() -> None:
    """The same seed, the same answer."""
    assert drawn(30, temperature=1.0, seed=5) == drawn(30, temperature=1.0, seed=5)


def test_two_seeds_draw_differently() -> None:
    """Thirty equal draws by chance are one in a billion."""
    assert drawn(30, temperature=1.0, seed=5) != drawn(30, temperature=1.0, seed=6)


def test_logprobs_are_the_models_own() -> None:
    """Before temperature; the likeliest first."""
    token = token_of(request(num_logprobs=2, temperature=9.0), 3, 1, LOGITS)

    assert token.logprob == pytest.approx(math.log(0.1))
    assert [token_id for token_id, _ in token.top_logprobs] == [0, 1]
    assert [logprob for _, logprob in token.top_logprobs] == pytest.approx([math.log(0.4), math.log(0.3)])


def test_zero_logprobs_is_the_chosen_tokens_alone() -> None:
    """`num_logprobs=0` is not the same as none."""
    token = token_of(request(num_logprobs=0), 1, 1, LOGITS)

    assert (token.logprob, token.top_logprobs) == (pytest.approx(math.log(0.3)), ())


def test_no_logprobs_unless_asked() -> None:
    """They cost a softmax over the vocabulary."""
    assert token_of(request(), 1, 1, LOGITS).logprob is None


@pytest.mark.parametrize(
    ("token_id", "num_generated", "finish_reason"), [(2, 1, None), (2, 3, "length"), (1, 1, "stop"), (1, 3, "stop")]
)
def test_an_answer_ends_at_a_stop_token_or_its_length(
    token_id: int, num_generated: int, finish_reason: str | None
) -> None:
    """Three tokens at most; token 1 stops."""
    token = token_of(request(max_tokens=3, stop_token_ids=(1,)), token_id, num_generated, LOGITS)

    assert token.finish_reason == finish_reason


@settings(deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(-FLOAT32, FLOAT32, width=32) | st.sampled_from([FLOAT32, -FLOAT32]), min_size=1),
    temperature=st.floats(0, 2) | st.sampled_from([5e-324, 1e-300, 1e-45, 1e-5]),
    top_p=st.floats(0, 1, exclude_min=True) | st.sampled_from([5e-324, 1.0]),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    num_logprobs=st.none() | st.integers(0, 20),
)
def test_no_legal_request_can_fail(
    logits: list[float], temperature: float, top_p: float, seed: int | None, num_logprobs: int | None
) -> None:
    """Whatever finite logits meet whatever a client may ask; an error here would end the whole instance."""
    asked = request(temperature=temperature, top_p=top_p, seed=seed, num_logprobs=num_logprobs)
    logits_V = torch.tensor(logits)
    chosen = Sampler(asked.sampling).choose(logits_V)
    token = token_of(asked, chosen, 1, logits_V)

    assert 0 <= chosen < len(logits)
    assert len(token.top_logprobs) == min(num_logprobs or 0, len(logits))


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 9e-6])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    """Dividing by it would leave nothing to draw from."""
    assert set(drawn(20, temperature=temperature, seed=1)) == {0}
