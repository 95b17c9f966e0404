"""What the soak asks, and the right answers: greedy tokens of the undivided model, computed before anything serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request, Sampling, Token
from asap_ray.models.model import load_model
from asap_ray.models.undivided import Undivided

LENGTHS: Final = (*(2500, 2100), *(900, 500, 257, 256, 129, 128, 64, 63), *range(1, 47))
"""Two that run alone in their group, some at the edges of blocks, many short ones."""

NUM_SHARED: Final = 12
"""Prompts that begin with the first tokens of another, so that prefix caches are used."""

MAX_ANSWER: Final = 3
CLEAR: Final = 0.01
"""Log-probability between the best two tokens: sums in another order must not change the choice."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and its answer."""

    token_ids: list[int]
    answer: list[int]


def make_prompts(directory: Path, seed: int) -> list[Asked]:
    """Prompts with a clear answer, the most popular first; token ids are skewed, and so are the experts they reach."""
    random = np.random.default_rng(seed)
    model = load_model(directory)
    undivided = model.undivided(SoloCollective(), torch.float32)
    prompts = [_draw(random, length, model.config.vocab_size) for length in LENGTHS]
    shared = [[*prompts[4], *_draw(random, 1 + 7 * n, model.config.vocab_size)] for n in range(NUM_SHARED)]
    asked = [Asked(ids, _answer(undivided, ids, 1 + n % MAX_ANSWER)) for n, ids in enumerate([*prompts, *shared])]
    clear = [each for each in asked if each.answer]
    random.shuffle(clear)  # type: ignore[arg-type]
    return clear


def popularity(num_prompts: int) -> np.ndarray:
    """Zipf's law: the first is asked for as often as the second and third together, or nearly."""
    shares = 1.0 / np.arange(1, num_prompts + 1)
    return shares / shares.sum()


def _draw(random: np.random.Generator, length: int, vocab_size: int) -> list[int]:
    return [int(n) % vocab_size for n in random.zipf(1.3, length)]


def _answer(model: Undivided, token_ids: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens; fewer where a choice is close, and then perhaps none."""
    request = Request(
        request_id="reference",
        num_tokens=len(token_ids),
        arrival_s=0.0,
        token_ids=np.asarray(token_ids, dtype="<i4").tobytes(),
        sampling=Sampling(max_tokens=num_tokens, num_logprobs=2),
    )
    answer = []
    for token in _tokens(model, Batch((request,))):
        (_, best), (_, second) = token.top_logprobs
        if best - second < CLEAR:
            break
        answer.append(token.token_id)
    return answer


def _tokens(model: Undivided, batch: Batch) -> Iterator[Token]:
    state = drive(model.start(batch))
    while state is not None:
        finished = drive(model.step(state))
        yield from finished.tokens
        state = finished.next_state
