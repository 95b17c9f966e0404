"""What a pass is expected to need counts the keys and values that threads lay out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.models.decoder import FLOAT_BYTES
from asap_ray.models.model import load_model
from tests.models.divided import SoloCollective

Make = Callable[..., tuple[Path, Any]]
NUM_TOKENS = 1000


@pytest.mark.parametrize(("num_threads", "num_heads"), [(2, 2), (3, 3), (8, 4)])
def test_every_thread_has_a_head(transformers_model: Make, num_threads: int, num_heads: int) -> None:
    """Of the 4 of 16 dimensions at most, keys and values."""
    stage = load_model(transformers_model()[0]).attention_stage(SoloCollective(), torch.float32)

    alone, shared = (stage.workspace_bytes(NUM_TOKENS, threads) for threads in (1, num_threads))

    assert shared - alone == (num_heads - 1) * NUM_TOKENS * 2 * 16 * FLOAT_BYTES
