"""A model in one place gives what one divided over devices gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Token
from asap_ray.models.model import load_model
from tests.models.divided import batch_of, random_prompts, run_divided


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3", "DeepseekV32"])
def test_tokens_are_those_of_two_ranks_and_three_devices(
    transformers_model: Callable[..., tuple[Path, Any]], family: str
) -> None:
    """Greedy answers of 8 tokens to three prompts of one batch."""
    model = load_model(transformers_model(family)[0])
    batch = batch_of(random_prompts([7, 1, 24], model.config.vocab_size), max_tokens=8)
    (expected, _) = run_divided(model, batch, tp=2, moe_devices=3)
    undivided = model.undivided(SoloCollective(), torch.float32)

    state, tokens = drive(undivided.start(batch)), list[Token]()
    while state is not None:
        finished = drive(undivided.step(state))
        tokens += finished.tokens
        state = finished.next_state

    assert tokens == expected.tokens
