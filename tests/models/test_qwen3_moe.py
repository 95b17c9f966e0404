"""A divided model answers as `transformers` does: same logits, same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asap_ray.errors import ConfigError
from asap_ray.models.gqa import GroupedQuery, kv_heads_of
from asap_ray.models.model import load_model
from tests.models.divided import SoloCollective, batch_of, drive, random_prompts, run_divided
from tests.models.tiny import TINY, YARN

Make = Callable[..., tuple[Path, Any]]
LENGTHS = [1, 2, 7, 64, 129, 300]


def expected_logits(oracle: Any, prompts: list[list[int]]) -> torch.Tensor:
    """Logits after the last token of each prompt, one at a time."""
    with torch.inference_mode():
        return torch.stack([oracle(torch.tensor([prompt])).logits[0, -1] for prompt in prompts])


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """A thousandth of the largest logit is the promise; float32 does a hundred times better."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(("tp", "moe_devices"), [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 2), (6, 1)])
def test_logits_of_a_divided_batch(transformers_model: Make, tp: int, moe_devices: int) -> None:
    """Six prompts of 1 to 300 tokens in one batch; T need not divide the tokens, the vocabulary or the KV heads."""
    directory, oracle = transformers_model()
    prompts = random_prompts(LENGTHS, TINY["vocab_size"])

    outcomes = run_divided(load_model(directory), batch_of(prompts), tp=tp, moe_devices=moe_devices)

    for outcome in outcomes:
        assert_same_logits(outcome.logits[0], expected_logits(oracle, prompts))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"norm_topk_prob": False},
        {"mlp_only_layers": [0, 2]},
        {"decoder_sparse_step": 2, "num_hidden_layers": 5},
        {"num_key_value_heads": 12},
        {"num_key_value_heads": 1},
        {"num_experts_per_tok": 1},
        {"num_experts_per_tok": 10},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 16}, "num_hidden_layers": 2},
    ],
    ids=lambda changes: next(iter(changes)) if isinstance(changes, dict) else str(changes),
)
def test_logits_of_every_kind_of_model(transformers_model: Make, changes: dict[str, Any], tp: int) -> None:
    """Each switch of the configuration, alone."""
    directory, oracle = transformers_model(**changes)
    prompts = random_prompts([3, 50], TINY["vocab_size"])

    outcomes = run_divided(load_model(directory), batch_of(prompts), tp=tp, moe_devices=2)

    assert_same_logits(outcomes[-1].logits[0], expected_logits(oracle, prompts))


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_greedy_answers_are_those_of_generate(transformers_model: Make, tp: int) -> None:
    """Decoding continues from the keys and values of the prompt, for requests of different lengths."""
    directory, oracle = transformers_model()
    prompts = random_prompts([1, 9, 33], TINY["vocab_size"])
    expected = [
        oracle.generate(torch.tensor([p]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, len(p) :].tolist()
        for p in prompts
    ]

    outcomes = run_divided(load_model(directory), batch_of(prompts, max_tokens=8), tp=tp, moe_devices=2)

    for outcome in outcomes:
        answers = [[t.token_id for t in outcome.tokens if t.request_id == str(idx)] for idx in range(len(prompts))]
        assert answers == expected


def test_a_stopped_request_leaves_the_batch(transformers_model: Make) -> None:
    """Token by token the batch shrinks: nobody computes for a request that has ended."""
    directory, _ = transformers_model()
    model, prompts = load_model(directory), random_prompts([4, 5], TINY["vocab_size"], seed=1)
    free = run_divided(model, batch_of(prompts, max_tokens=6))[0].tokens
    second = [token.token_id for token in free if token.request_id == "0"][1]

    outcome = run_divided(model, batch_of(prompts, max_tokens=6, stop_token_ids=(second,)))[0]

    assert outcome.rows == [9, 2, 1, 1, 1, 1]
    assert [t.finish_reason for t in outcome.tokens if t.request_id == "0"] == [None, "stop"]
    assert [t.finish_reason for t in outcome.tokens if t.request_id == "1"] == [None] * 5 + ["length"]


def test_one_token_keeps_no_keys(transformers_model: Make) -> None:
    """A pure prefill has no next state, and no cache was made."""
    directory, _ = transformers_model()
    stage = load_model(directory).attention_stage(SoloCollective(), torch.float32)

    state = drive(stage.start(batch_of([[1, 2, 3]])))

    assert [sequence.cache for sequence in state.sequences] == [None]


def test_nothing_is_kept_for_gradients(transformers_model: Make) -> None:
    """Stages compute in inference mode, though a coroutine's body runs after its call."""
    directory, _ = transformers_model()
    stage = load_model(directory).attention_stage(SoloCollective(), torch.float32)

    routed = drive(stage.attend(drive(stage.start(batch_of([[1, 2, 3]]))), 0, None))

    assert routed.hidden_SH.is_inference()


def test_padding_is_not_dispatched(transformers_model: Make) -> None:
    """Four tokens on three ranks are 2, 2 and 0 rows."""
    directory, _ = transformers_model()

    outcomes = run_divided(load_model(directory), batch_of([[5, 6, 7, 8]]), tp=3)

    assert [outcome.rows for outcome in outcomes] == [[2], [2], [0]]


def test_a_request_does_not_see_its_neighbours(transformers_model: Make) -> None:
    """Alone and in a batch it has the same logits, bit for bit or nearly."""
    directory, _ = transformers_model()
    model, prompts = load_model(directory), random_prompts([40, 90, 11], TINY["vocab_size"])

    together = run_divided(model, batch_of(prompts))[0].logits[0]
    alone = torch.cat([run_divided(model, batch_of([prompt]))[0].logits[0] for prompt in prompts])

    assert_same_logits(together, alone)


def test_sampled_tokens_agree_on_all_ranks(transformers_model: Make) -> None:
    """Without a seed each rank would draw differently; rank 0 decides."""
    directory, _ = transformers_model()
    batch = batch_of(random_prompts([6, 3], TINY["vocab_size"]), max_tokens=5, temperature=1.0, num_logprobs=1)

    outcomes = run_divided(load_model(directory), batch, tp=3)

    assert outcomes[1].tokens == outcomes[0].tokens
    assert outcomes[2].tokens == outcomes[0].tokens


def test_tp_that_does_not_divide_the_heads_is_refused(transformers_model: Make) -> None:
    """Twelve heads cannot be split over five ranks."""
    directory, _ = transformers_model()

    with pytest.raises(ConfigError, match="tp=5 must divide num_attention_heads=12"):
        run_divided(load_model(directory), batch_of([[1]]), tp=5)


def test_an_unknown_architecture_is_refused_before_any_weight(tmp_path: Path) -> None:
    """There are no weights here to be read."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')

    with pytest.raises(ConfigError, match="model_type='llama'"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("query_heads", "kv_heads"),
    [(range(0, 12), [0, 1, 2, 3]), (range(6, 12), [2, 3]), (range(4, 8), [1, 2]), (range(0, 4), [0, 0, 0, 1])],
)
def test_kv_heads_follow_their_query_heads(transformers_model: Make, query_heads: range, kv_heads: list[int]) -> None:
    """Twelve query heads over four: heads 0..3 divide unevenly over two of them, so each brings a copy."""
    directory, _ = transformers_model()
    attention = load_model(directory).config.attention

    assert isinstance(attention, GroupedQuery)
    assert kv_heads_of(attention, query_heads) == kv_heads
