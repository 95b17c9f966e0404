"""Whole models whose attention computes on a die, beside the same on the host: each kind of attention, each way in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from asap_ray.backends.ascend.die_place import DiePlace
from asap_ray.backends.place import HostPlace, Place
from asap_ray.batch import Batch, Token
from asap_ray.models.decoder import Decoder
from asap_ray.models.model import Model, load_model
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny
from asap_ray.protocol import Collective
from tests.models.divided import Experts, Outcome, batch_of, random_prompts, run_divided, run_rank

BLOCK: Final = 4
NUM_BLOCKS: Final = 16
PROMPT_TOKENS: Final = 11
TOLERANCE: Final = {"float32": 1e-4, "bfloat16": 5e-2}
"""Of the largest logit."""


@dataclass(frozen=True)
class Case:
    """A family in a type, on T ranks."""

    family: str
    dtype: str
    tp: int = 1

    def __str__(self) -> str:
        return f"{self.family}-{self.dtype}-tp{self.tp}"


FAMILIES: Final = ("qwen3_moe", "mixtral", "glm4_moe", "deepseek_v3", "deepseek_v32")
CASES: Final = (
    *(Case(family, dtype) for family in FAMILIES for dtype in TOLERANCE),
    Case("qwen3_moe", "float32", tp=2),
    Case("deepseek_v3", "float32", tp=2),
)


def batches() -> list[Batch]:
    """A prompt in pages and two answers beside it; the rest of it behind a prefix hit, in two chunks."""
    first, other = batch_of(random_prompts([PROMPT_TOKENS, 3], 300), max_tokens=3).requests
    hit = replace(first, request_id="hit", table=(7, 6, 9, 4)).behind(BLOCK)
    cut = BLOCK + 3
    pieces = [Batch((hit.chunk(*ends),)) for ends in ((BLOCK, cut), (cut, PROMPT_TOKENS))]
    return [Batch((replace(first, table=(7, 2, 5, 1)), other)), *pieces]


def run(model: Model, case: Case, place: Place) -> Outcome:
    """All batches; what rank 0 made of them."""

    def stage_of(model: Model, collective: Collective, dtype: torch.dtype) -> Decoder:
        return model.attention_stage(place.collective(collective), dtype, place.kernels)

    def in_pages(stage: Decoder, experts: Experts, all_batches: Sequence[Batch]) -> Outcome:
        stage.keep_in(place.pages("test", stage.cache_spec(BLOCK), NUM_BLOCKS)[0])
        return run_rank(stage, experts, all_batches)

    dtype: torch.dtype = getattr(torch, case.dtype)
    return run_divided(model, *batches(), tp=case.tp, dtype=dtype, run=in_pages, stage_of=stage_of)[0]


def error_of(case: Case, device: str, folder: Path) -> dict[str, Any]:
    """The largest difference of two runs' logits as a share of the largest, and whether their tokens are the same."""
    directory = folder / case.family
    if not directory.exists():
        make_random_checkpoint(directory, family=case.family, **tiny())
    model = load_model(directory)
    host, die = (run(model, case, place) for place in (HostPlace(), DiePlace(torch.device(device))))
    logits = [torch.cat([each.flatten() for each in outcome.logits]) for outcome in (host, die)]
    difference = (logits[0] - logits[1]).abs().max() / logits[0].abs().max()
    return {"difference": float(difference), "same_tokens": _ids(host.tokens) == _ids(die.tokens)}


def _ids(tokens: Sequence[Token]) -> list[int]:
    return [token.token_id for token in tokens]
