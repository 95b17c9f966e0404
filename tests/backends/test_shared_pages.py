"""Keys and values of a divided prefill, pulled through shared memory into an undivided model that decodes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.shared_pages import SharedPages
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request
from asap_ray.errors import Unavailable
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.messages import Pages
from asap_ray.models.decoder import Decoder
from asap_ray.models.model import Model, load_model
from tests.models.conftest import transformers_model  # noqa: F401 - a fixture
from tests.models.divided import Experts, Outcome, batch_of, random_prompts, run_divided, run_rank

BLOCK, NUM_BLOCKS = 16, 12
TABLE, INTO = (9, 2, 5), (1, 11, 4, 0)
NUM_TOKENS, NUM_ANSWER = 41, 16


def prefill(model: Model, request: Request, tp: int) -> list[Pages]:
    """Compute a prompt on `tp` ranks; where each has its pages."""
    ranks: dict[int, Pages] = {}

    def run(stage: Decoder, experts: Experts, batches: Sequence[Batch]) -> Outcome:
        spec = stage.cache_spec(BLOCK)
        memory = PageMemory.create("test", NUM_BLOCKS * spec.block_bytes)
        memories.append(memory)
        rank = stage._collective.rank
        ranks[rank] = Pages(pid=memory.pid, fd=memory.fd, num_bytes=memory.num_bytes, num_blocks=NUM_BLOCKS, spec=spec)
        stage.keep_in(Storage(spec, NUM_BLOCKS, memory.bytes))
        return run_rank(stage, experts, batches)

    run_divided(
        model, Batch((replace(request, table=TABLE, sampling=replace(request.sampling, max_tokens=1)),)), tp=tp, run=run
    )
    return [ranks[rank] for rank in range(tp)]


memories: list[PageMemory] = []
"""As long as a test lasts: pages go with their last owner."""


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    memories.clear()


def decode(model: Model, request: Request, ranks: Sequence[Pages]) -> list[int]:
    """Pull all but the last token, compute that one, and go on."""
    undivided = model.undivided(SoloCollective(), torch.float32)
    spec = undivided.attention.cache_spec(BLOCK)
    storage = Storage(spec, NUM_BLOCKS)
    undivided.attention.keep_in(storage)
    SharedPages(storage).pull(ranks, TABLE, INTO, NUM_TOKENS - 1)
    past = {"past_tokens": NUM_TOKENS - 1, "cached_tokens": NUM_TOKENS - 1}
    last = replace(request, num_tokens=1, token_ids=request.token_ids[-4:], table=INTO, **past)
    state, tokens = drive(undivided.start(Batch((last,)))), list[int]()
    while state is not None:
        finished = drive(undivided.step(state))
        tokens += [token.token_id for token in finished.tokens]
        state = finished.next_state
    return tokens


@pytest.fixture(params=["Qwen3Moe", "DeepseekV3", "DeepseekV32"])
def model(request: pytest.FixtureRequest, transformers_model: Callable[..., tuple[Path, Any]]) -> Model:  # noqa: F811
    """One of each kind of attention."""
    return load_model(transformers_model(request.param)[0])


@pytest.fixture
def prompt() -> Request:
    """41 tokens, whose answer has 16."""
    (request,) = batch_of(random_prompts([NUM_TOKENS], 301), max_tokens=NUM_ANSWER).requests
    return request


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tokens_are_those_of_an_undivided_model(model: Model, prompt: Request, tp: int) -> None:
    """Heads of two ranks are put together; latents are the same on both."""
    expected = [token.token_id for token in run_divided(model, Batch((prompt,)))[0].tokens]

    assert decode(model, prompt, prefill(model, prompt, tp)) == expected


def test_other_pages_give_other_tokens(model: Model, prompt: Request) -> None:
    """What was pulled is what is attended to."""
    expected = [token.token_id for token in run_divided(model, Batch((prompt,)))[0].tokens]
    ranks = prefill(model, prompt, tp=2)
    for memory in memories:
        memory.bytes.view(torch.float32).neg_()

    assert decode(model, prompt, ranks) != expected


def test_pages_of_a_process_that_is_gone(model: Model, prompt: Request) -> None:
    """The error says whose."""
    pages = replace(prefill(model, prompt, tp=1)[0], fd=memories[0].fd)
    memories.clear()

    with pytest.raises(Unavailable, match=f"cannot map the pages of process {os.getpid()}"):
        decode(model, prompt, [pages])
