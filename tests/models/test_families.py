"""Every family answers as `transformers` does, however it is divided: layer by layer, whole or in chunks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.batch import Batch
from asap_ray.models.model import load_model
from tests.models.divided import Outcome, SoloCollective, batch_of, drive, random_prompts, run_divided
from tests.models.tiny import FAMILIES, YARN

Make = Callable[..., tuple[Path, Any]]
OTHERS = [family for family in FAMILIES if family != "Qwen3Moe"]
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 100]  # the chosen tokens of the tiny DeepSeek-V3.2 are 16


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, as a share of the largest number."""
    return float((actual - expected).abs().max() / expected.abs().max())


def expected_of(oracle: Any, prompts: list[list[int]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits after the last token of each prompt, and hidden states after each layer but the last, of all tokens."""
    with torch.inference_mode():
        outputs = [oracle(torch.tensor([prompt]), output_hidden_states=True) for prompt in prompts]
    layers = [torch.cat(each) for each in zip(*([h[0] for h in o.hidden_states] for o in outputs), strict=True)]
    return torch.stack([output.logits[0, -1] for output in outputs]), layers[1:-1]


def errors(model: Path, oracle: Any, prompts: list[list[int]], **division: int) -> tuple[float, float]:
    """Relative errors of the logits on every rank, and of the hidden states of every MoE layer, whichever is worst."""
    loaded = load_model(model)
    logits, layers = expected_of(oracle, prompts)
    outcomes = run_divided(loaded, batch_of(prompts), **division)
    of_layers = [
        relative_error(torch.cat(hidden), layers[layer_idx])
        for layer_idx, *hidden in zip(loaded.config.moe_layers[:-1], *(o.hidden for o in outcomes), strict=False)
    ]
    assert len(of_layers) == len(loaded.config.moe_layers) - 1
    return max(relative_error(outcome.logits[0], logits) for outcome in outcomes), max(of_layers, default=0.0)


@pytest.mark.parametrize(("tp", "moe_devices"), [(1, 1), (1, 3), (2, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("family", OTHERS)
def test_layers_and_logits_of_a_divided_batch(transformers_model: Make, family: str, tp: int, moe_devices: int) -> None:
    """Prompts around every boundary, in one batch."""
    directory, oracle = transformers_model(family)
    prompts = random_prompts(LENGTHS, 301)

    assert max(errors(directory, oracle, prompts, tp=tp, moe_devices=moe_devices)) < 1e-5


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("DeepseekV3", {"q_lora_rank": None}),
        ("DeepseekV3", {"n_group": 1, "topk_group": 1}),
        ("DeepseekV3", {"n_shared_experts": 2}),
        ("DeepseekV3", {"first_k_dense_replace": 0}),
        ("DeepseekV3", {"first_k_dense_replace": 2}),
        ("DeepseekV3", {"norm_topk_prob": False}),
        ("DeepseekV3", {"kv_lora_rank": 8}),
        ("DeepseekV3", {"v_head_dim": 24}),
        ("DeepseekV3", {"rms_norm_eps": 1e-3}),
        ("DeepseekV3", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}}),
        ("DeepseekV3", {"rope_parameters": {**YARN, "beta_fast": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}}),
        ("DeepseekV3", {"rope_parameters": YARN}),
        ("DeepseekV3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}),
        ("DeepseekV32", {"index_topk": 1}),
        ("DeepseekV32", {"index_topk": 40}),
        ("DeepseekV32", {"index_topk": 200}),
        ("DeepseekV32", {"index_head_dim": 8}),
        ("Glm4Moe", {"use_qk_norm": True}),
        ("Glm4Moe", {"attention_bias": True}),
        ("Glm4Moe", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        ("Mixtral", {"num_key_value_heads": 12}),
        ("Mixtral", {"head_dim": None}),
        ("Mixtral", {"tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_layers_and_logits_of_every_kind_of_model(
    transformers_model: Make, family: str, changes: dict[str, Any], tp: int
) -> None:
    """Each switch of the configuration, alone."""
    directory, oracle = transformers_model(family, **changes)

    assert max(errors(directory, oracle, random_prompts([3, 50], 301), tp=tp, moe_devices=2)) < 1e-5


def tokens_of(outcome: Outcome, num_prompts: int) -> list[list[int]]:
    """The answer of each request."""
    return [[t.token_id for t in outcome.tokens if t.request_id == str(idx)] for idx in range(num_prompts)]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", OTHERS)
def test_greedy_answers_are_those_of_generate(transformers_model: Make, family: str, tp: int) -> None:
    """Decoding goes on from what the prompt left in the cache, across the boundary of the chosen tokens too."""
    directory, oracle = transformers_model(family)
    prompts = random_prompts([1, 12, 33], 301)
    expected = [
        oracle.generate(torch.tensor([p]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, len(p) :].tolist()
        for p in prompts
    ]

    outcomes = run_divided(load_model(directory), batch_of(prompts, max_tokens=8), tp=tp, moe_devices=2)

    assert [tokens_of(outcome, len(prompts)) for outcome in outcomes] == [expected] * tp


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cuts", [(64,), (1,), (99,), (8, 15, 16, 17, 18), (50, 51)], ids=str)
@pytest.mark.parametrize("family", OTHERS)
def test_chunks_are_the_whole_prompt(transformers_model: Make, family: str, cuts: tuple[int, ...], tp: int) -> None:
    """The last chunk's logits, whether it meets latents or the keys of each head."""
    model = load_model(transformers_model(family)[0])
    prompt = batch_of(random_prompts([100], 301))
    (request,) = prompt.requests
    chunks = [Batch((request.chunk(start, stop),)) for start, stop in pairwise((0, *cuts, request.num_tokens))]
    whole = run_divided(model, prompt)[0].logits[0]

    outcomes = run_divided(model, *chunks, tp=tp, moe_devices=2)

    assert max(relative_error(outcome.logits[-1], whole) for outcome in outcomes) < 1e-5


@pytest.mark.parametrize(("family", "kept"), [("DeepseekV3", ((1, 48),)), ("DeepseekV32", ((1, 48), (1, 16)))])
def test_the_cache_keeps_latents(transformers_model: Make, family: str, kept: tuple[tuple[int, int], ...]) -> None:
    """One row of latent and rotated key a token, whatever the heads, and the indexer's key."""
    stage = load_model(transformers_model(family)[0]).attention_stage(SoloCollective(), torch.float32)

    state = drive(stage.start(batch_of([[1, 2, 3]], max_tokens=2)))

    assert state.sequences[0].cache.shapes == tuple((3, heads, 4, width) for heads, width in kept)


def test_kimi_k2_is_deepseek_v3_by_another_name(transformers_model: Make, tmp_path: Path) -> None:
    """Its configuration says kimi_k2 and names DeepSeek's class."""
    directory, oracle = transformers_model("DeepseekV3")
    shutil.copytree(directory, tmp_path / "kimi")
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "kimi" / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2"}))

    assert max(errors(tmp_path / "kimi", oracle, random_prompts([5], 301))) < 1e-5


@pytest.mark.parametrize("family", ["DeepseekV3", "DeepseekV32", "Glm4Moe", "Mixtral"])
def test_bfloat16_stays_near_float32(transformers_model: Make, family: str) -> None:
    """Rounding moves a tiny model's logits by some hundredths of the largest."""
    directory, oracle = transformers_model(family)
    prompts = random_prompts([24], 301)
    logits, _ = expected_of(oracle, prompts)

    rounded = run_divided(load_model(directory), batch_of(prompts), dtype=torch.bfloat16)[0].logits[0]

    assert relative_error(rounded, logits) < 0.1
