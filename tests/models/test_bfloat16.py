"""bfloat16 compute changes the first token only where two are as good as equal."""

from __future__ import annotations

import pytest
import torch

from asap_ray.models.model import load_model
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny
from tests.models.divided import batch_of, random_prompts, run_divided

NUM_PROMPTS = 200


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, torch.Tensor]:
    """Of 200 prompts of 1 to 64 tokens: float32 and bfloat16 compute on bfloat16 weights."""
    directory = tmp_path_factory.mktemp("bfloat16")
    make_random_checkpoint(directory, **{**tiny(), "dtype": torch.bfloat16, "top_k": 4})
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 65, (NUM_PROMPTS,), generator=generator).tolist()
    batch, model = batch_of(random_prompts(lengths, tiny()["vocab_size"])), load_model(directory)
    exact, rounded = (run_divided(model, batch, dtype=dtype)[0].logits[0] for dtype in (torch.float32, torch.bfloat16))
    return exact, rounded


def test_first_tokens_agree(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    """At least 99 of 100; benchmarks/bfloat16_agreement.py does it up to 2048 tokens."""
    exact, rounded = logits

    assert int((exact.argmax(1) == rounded.argmax(1)).sum()) >= 0.99 * NUM_PROMPTS


def test_disagreements_are_ties(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Where the first token changes, the margin in float32 is below bfloat16's resolution, 2^-8 of the logit."""
    exact, rounded = logits
    best = exact.topk(2, dim=1).values
    differs = exact.argmax(1) != rounded.argmax(1)

    assert bool((best[differs, 0] - best[differs, 1] < best[differs, 0].abs() / 256).all())


def test_logits_are_not_rounded(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The head's products are summed in float32: bfloat16 logits would tie."""
    _, rounded = logits

    assert not torch.equal(rounded, rounded.bfloat16().float())
