"""Prompts in pages: a prefix that is found there gives the logits of the prompt computed whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.batch import Batch, Request
from asap_ray.kvcache.storage import Storage
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
    run_rank,
)

Make = Callable[..., tuple[Path, Any]]
FAMILIES = ["Qwen3Moe", "DeepseekV3", "DeepseekV32"]  # grouped queries, latents, latents and an indexer
BLOCK = 16
TOLERANCE = 1e-5
"""Of the largest logit, as for chunks: products over fewer rows round in another order."""


def run_in_pages(stage: Decoder, experts: Experts, batches: Sequence[Batch]) -> Outcome:
    """One batch after the other, on a rank that has pages."""
    stage.keep_in(Storage(stage.cache_spec(BLOCK), num_blocks=64))
    return run_rank(stage, experts, batches)


def seen(request: Request, table: tuple[int, ...], cached_tokens: int = 0) -> Request:
    """A whole prompt as a group sees it that has the first of its tokens."""
    return replace(request, table=table).behind(cached_tokens)


def pieces_of(request: Request, *cuts: int) -> list[Batch]:
    """What is left of a prompt, cut at these tokens of it, a batch each."""
    ends = (request.past_tokens, *cuts, request.prompt_tokens)
    return [Batch((request.chunk(start, stop),)) for start, stop in pairwise(ends)]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest number."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, transformers_model: Make) -> Model:
    """One of each kind of attention."""
    return load_model(transformers_model(request.param)[0])


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cached_tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_hit_gives_the_logits_of_the_cold_run(model: Model, cached_tokens: int, tp: int) -> None:
    """Whatever is left, one token too; blocks lie anywhere."""
    (prompt,) = batch_of(random_prompts([49], 301)).requests
    cold = run_divided(model, Batch((prompt,)))[0].logits[0]
    first = replace(seen(prompt, (9, 2, 30, 5)), request_id="first")

    outcomes = run_divided(
        model, Batch((first,)), Batch((seen(prompt, (9, 2, 30, 40), cached_tokens),)), tp=tp, run=run_in_pages
    )

    assert max(relative_error(outcome.logits[1], cold) for outcome in outcomes) < TOLERANCE


@pytest.mark.parametrize("tp", [1, 2])
def test_a_prompt_without_a_hit_is_computed_as_without_pages(model: Model, tp: int) -> None:
    """Bit for bit: it attends to its own rows."""
    (prompt,) = batch_of(random_prompts([50], 301)).requests
    without = run_divided(model, Batch((prompt,)), tp=tp)

    within = run_divided(model, Batch((seen(prompt, (9, 2, 30, 5)),)), tp=tp, run=run_in_pages)

    assert all(torch.equal(a.logits[0], b.logits[0]) for a, b in zip(within, without, strict=True))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cuts", [(17,), (47, 48, 49), (32, 64), (99,)], ids=str)
def test_a_hit_in_pieces(model: Model, cuts: tuple[int, ...], tp: int) -> None:
    """Each goes on behind the one before it, the first behind the prefix."""
    (prompt,) = batch_of(random_prompts([100], 301)).requests
    cold = run_divided(model, Batch((prompt,)))[0].logits[0]
    first = replace(seen(prompt, (7, 6, 5, 4, 3, 2, 1)), request_id="first")
    hit = seen(prompt, (7, 40, 41, 42, 43, 44, 45), BLOCK)

    outcomes = run_divided(model, Batch((first,)), *pieces_of(hit, *cuts), tp=tp, run=run_in_pages)

    assert max(relative_error(outcome.logits[-1], cold) for outcome in outcomes) < TOLERANCE


@pytest.mark.parametrize("tp", [1, 2])
def test_requests_of_a_batch_share_a_prefix(model: Model, tp: int) -> None:
    """Several with one prefix, more or less of it, beside one that has none of it."""
    prefix, *rests = random_prompts([32, 20, 1, 33, 40], 301)
    prompts = [prefix + rests[0], prefix + rests[1], prefix + rests[2], rests[3]]
    requests = batch_of(prompts).requests
    cold = run_divided(model, Batch(requests))[0].logits[0]
    first = replace(seen(requests[0], (1, 2, 3, 4)), request_id="first")
    tables = (1, 2, 10, 11), (1, 2, 12), (1, 20, 21, 22, 23), (30, 31, 32)
    hits = [seen(r, table, n) for r, table, n in zip(requests, tables, (32, 32, 16, 0), strict=True)]

    outcomes = run_divided(model, Batch((first,)), Batch(tuple(hits)), tp=tp, run=run_in_pages)

    assert max(relative_error(outcome.logits[1], cold) for outcome in outcomes) < TOLERANCE


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("length", [33, 40, 47])
def test_an_answer_goes_on_behind_a_hit(model: Model, length: int, tp: int) -> None:
    """Eight tokens in the same pages, across the end of a block."""
    (prompt,) = batch_of(random_prompts([length], 301), max_tokens=8, temperature=0.0).requests
    cold = run_divided(model, Batch((prompt,)))[0].tokens
    first = replace(seen(prompt, (4, 8, 15, 16)), request_id="first")
    hit = seen(prompt, (4, 8, 23, 42), 2 * BLOCK)

    outcomes = run_divided(model, Batch((first,)), Batch((hit,)), tp=tp, run=run_in_pages)

    answers = [[t.token_id for t in outcome.tokens if t.request_id == "0"] for outcome in outcomes]
    assert answers == [[t.token_id for t in cold]] * tp


def test_the_last_piece_takes_its_pages_along(model: Model) -> None:
    """The stage keeps nothing of a prompt that is complete, and nothing of one that is forgotten."""
    stage = model.attention_stage(SoloCollective(), torch.float32)
    stage.keep_in(Storage(stage.cache_spec(BLOCK), num_blocks=8))
    (prompt,) = batch_of(random_prompts([40], 301)).requests
    first, last = pieces_of(seen(prompt, (1, 2, 3), BLOCK), 20)

    kept = []
    for batch in (first, last, first, Batch((), forget=("0",))):
        drive(stage.start(batch))
        kept.append(stage.num_kept)

    assert kept == [1, 0, 1, 0]


def test_a_row_of_latents_is_the_latent_and_the_rotated_key_in_pairs(transformers_model: Make) -> None:
    """What vLLM's decode instances read; `transformers` has the second halves of all pairs behind the first."""
    directory, oracle = transformers_model("DeepseekV3")
    prompt = batch_of(random_prompts([20], 301)).requests[0]
    ids = torch.frombuffer(bytearray(prompt.token_ids), dtype=torch.int32).long()
    with torch.inference_mode():
        kept = oracle(ids[None], use_cache=True).past_key_values.layers  # latents as keys, rotated keys as values
    expected = [torch.cat((k.keys[0, 0], k.values[0, 0].view(20, 2, 4).mT.flatten(1)), dim=1) for k in kept]
    model = load_model(directory)
    stage, experts = model.attention_stage(SoloCollective(), torch.float32), range(model.spec.num_experts)

    storage = Storage(stage.cache_spec(BLOCK), num_blocks=4)
    stage.keep_in(storage)
    run_rank(stage, [(experts, model.expert_stage(experts, torch.float32))], [Batch((seen(prompt, (3, 1)),))])

    rows = storage.pages("latent")[:, [3, 1], 0].flatten(1, 2)[:, :20]
    assert max(relative_error(*pair) for pair in zip(rows, expected, strict=True)) < TOLERANCE
