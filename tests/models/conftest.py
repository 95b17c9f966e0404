"""The oracle: tiny models made, saved and run by `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.tiny import FAMILIES


@pytest.fixture(scope="session")
def transformers_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """Make a tiny random model of a family with `transformers` and save it; the oracle beside its directory."""

    made: dict[str, tuple[Path, Any]] = {}

    def make(family: str = "Qwen3Moe", **changes: Any) -> tuple[Path, Any]:
        key = repr((family, sorted(changes.items())))
        if key not in made:
            torch.manual_seed(7)
            config = getattr(transformers, f"{family}Config")(**{**FAMILIES[family], **changes})
            oracle = getattr(transformers, f"{family}ForCausalLM")(config).eval()
            corrections = [value for name, value in oracle.named_buffers() if "correction_bias" in name]
            for values in (*oracle.parameters(), *corrections):
                values.data += 0.05 * torch.randn_like(values)  # biases and norms are not zero and one
            directory = tmp_path_factory.mktemp("model")
            oracle.save_pretrained(directory)
            made[key] = directory, oracle
        return made[key]

    return make
