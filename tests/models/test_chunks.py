"""A prompt in chunks is the prompt: same logits, same tokens, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.batch import Batch
from asap_ray.models.decoder import Decoder
from asap_ray.models.model import Model, load_model
from tests.models.divided import (
    Experts,
    Outcome,
    SoloCollective,
    batch_of,
    drive,
    random_prompts,
    run_divided,
    turns,
)
from tests.models.tiny import TINY

Make = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="session")
def model(transformers_model: Make) -> Model:
    """Untied, 12 query and 4 key-value heads."""
    return load_model(transformers_model()[0])


def chunks_of(whole: Batch, *cuts: int) -> list[Batch]:
    """The only request of a batch in chunks, a batch each."""
    (request,) = whole.requests
    return [Batch((request.chunk(start, stop),)) for start, stop in pairwise((0, *cuts, request.num_tokens))]


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a hundred-thousandth of the largest."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def run_overlapped(stage: Decoder, experts: Experts, batches: Sequence[Batch]) -> Outcome:
    """Each batch one layer behind the one before it, as two slots of a group run them."""
    outcome, flights, waiting = Outcome(), [], list(batches)
    while waiting or flights:
        if waiting:
            flights.append(turns(stage, experts, waiting.pop(0), outcome))
        flights = [flight for flight in flights if next(flight, StopIteration) is not StopIteration]
    return outcome


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cuts", [(64,), (1,), (199,), (1, 2, 3), (50, 100, 150), (128, 129)], ids=str)
def test_logits_of_any_chunking(model: Model, cuts: tuple[int, ...], tp: int) -> None:
    """One token, odd sizes, many: the last chunk's logits are the whole prompt's, on every rank."""
    prompt = batch_of(random_prompts([200], TINY["vocab_size"]))
    whole = run_divided(model, prompt)[0].logits[-1]

    outcomes = run_divided(model, *chunks_of(prompt, *cuts), tp=tp, moe_devices=2)

    for outcome in outcomes:
        assert_same_logits(outcome.logits[-1], whole)


@pytest.mark.parametrize("tp", [1, 2])
def test_consecutive_chunks_may_be_in_flight_together(model: Model, tp: int) -> None:
    """A chunk needs of its predecessor only that it is a layer ahead."""
    prompt = batch_of(random_prompts([200], TINY["vocab_size"]))
    whole = run_divided(model, prompt)[0].logits[-1]

    outcomes = run_divided(model, *chunks_of(prompt, 70, 120), tp=tp, run=run_overlapped)

    for outcome in outcomes:
        assert_same_logits(outcome.logits[-1], whole)


def test_chunks_and_whole_prompts_share_a_batch(model: Model) -> None:
    """Only what is complete gets a token, and each its own."""
    prompts = batch_of(random_prompts([90, 40, 30], TINY["vocab_size"]))
    long, *others = prompts.requests
    batches = [Batch((others[0], long.chunk(0, 50))), Batch((long.chunk(50, 90), others[1]))]
    alone = [run_divided(model, Batch((request,)))[0] for request in prompts.requests]

    outcome = run_divided(model, *batches)[0]

    assert [token.request_id for token in outcome.tokens] == ["1", "0", "2"]
    assert_same_logits(outcome.logits[0], alone[1].logits[0])
    assert_same_logits(outcome.logits[1], torch.cat((alone[0].logits[0], alone[2].logits[0])))


def test_an_answer_goes_on_from_a_prompt_in_chunks(model: Model) -> None:
    """Decoding attends to the keys and values of every chunk."""
    prompt = batch_of(random_prompts([60], TINY["vocab_size"]), max_tokens=6)
    whole = run_divided(model, prompt)[0].tokens

    chunked = run_divided(model, *chunks_of(prompt, 25, 50))[0].tokens

    assert chunked == whole


def test_a_chunk_with_more_to_come_gets_no_token(model: Model) -> None:
    """Its pass ends all the same."""
    first, _ = chunks_of(batch_of([[1, 2, 3, 4]], max_tokens=2), 2)

    outcome = run_divided(model, first)[0]

    assert outcome.tokens == []
    assert outcome.rows == [2]


def test_the_last_chunk_takes_the_keys_along(model: Model) -> None:
    """The stage keeps nothing of a prompt that is complete."""
    stage = model.attention_stage(SoloCollective(), torch.float32)

    kept = []
    for chunk in chunks_of(batch_of([[1, 2, 3]]), 1, 2):
        drive(stage.start(chunk))
        kept.append(stage.num_kept)

    assert kept == [1, 1, 0]


def test_an_abandoned_prompt_is_forgotten_when_a_batch_says_so(model: Model) -> None:
    """Its keys and values go before the batch starts; a prompt that was never there is no error."""
    stage = model.attention_stage(SoloCollective(), torch.float32)
    first, _ = chunks_of(batch_of([[1, 2, 3]]), 2)
    drive(stage.start(first))

    drive(stage.start(Batch((), forget=(first.requests[0].request_id, "nobody"))))

    assert stage.num_kept == 0


def test_a_prompt_may_start_over_in_the_batch_that_forgets_it(model: Model) -> None:
    """The old keys and values go, the new ones stay."""
    stage = model.attention_stage(SoloCollective(), torch.float32)
    first, last = chunks_of(batch_of([[1, 2, 3]]), 2)
    drive(stage.start(first))

    again = drive(stage.start(Batch(first.requests, forget=(first.requests[0].request_id,))))

    drive(stage.attend(again, 0, None))
    drive(stage.attend(drive(stage.start(last)), 0, None))


def test_a_chunk_may_not_run_ahead(model: Model) -> None:
    """What its predecessor has not computed yet is not there to be attended."""
    stage = model.attention_stage(SoloCollective(), torch.float32)
    first, second = (drive(stage.start(chunk)) for chunk in chunks_of(batch_of([[1, 2, 3]]), 2))

    with pytest.raises(AssertionError, match="runs ahead of the one before it"):
        drive(stage.attend(second, 0, None))

    drive(stage.attend(first, 0, None))
    drive(stage.attend(second, 0, None))


@pytest.mark.parametrize("tp", [1, 2])
def test_a_batch_of_nothing_passes(model: Model, tp: int) -> None:
    """A rank without work keeps step with a synchronous system's others (5.1)."""
    outcomes = run_divided(model, Batch(()), tp=tp)

    assert [(outcome.tokens, outcome.rows) for outcome in outcomes] == [([], [0])] * tp
