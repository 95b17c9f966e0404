"""The oracle: tiny models made, saved and run by `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.models.divided import TINY


@pytest.fixture(scope="session")
def transformers_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Qwen3MoeForCausalLM]]:
    """Make a tiny random model with `transformers` and save it; the oracle beside its directory."""

    made: dict[str, tuple[Path, Qwen3MoeForCausalLM]] = {}

    def make(**changes: Any) -> tuple[Path, Qwen3MoeForCausalLM]:
        key = repr(sorted(changes.items()))
        if key not in made:
            torch.manual_seed(7)
            oracle = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**TINY, **changes})).eval()
            for parameter in oracle.parameters():
                parameter.data += 0.05 * torch.randn_like(parameter)  # biases and norms are not zero and one
            directory = tmp_path_factory.mktemp("model")
            oracle.save_pretrained(directory)
            made[key] = directory, oracle
        return made[key]

    return make
