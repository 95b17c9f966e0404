"""Random checkpoints are ordinary ones: `transformers` loads them unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asap_ray.errors import ConfigError
from asap_ray.models.model import load_model
from asap_ray.models.random_checkpoint import demo, make_random_checkpoint, tiny
from tests.models.divided import batch_of, run_divided

TEXT = "Read the manual, then: naïve 世界 `import this`\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    made = tmp_path_factory.mktemp("tiny")
    make_random_checkpoint(made, **tiny())
    return made


def test_transformers_finds_every_weight_and_no_other(directory: Path) -> None:
    """No key is missing, unexpected or of another shape."""
    _, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)

    assert [loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set()] * 3


def test_both_loaders_make_the_same_logits(directory: Path) -> None:
    """Its own tokenizer, its own text."""
    prompt = AutoTokenizer.from_pretrained(directory)(TEXT).input_ids
    oracle = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        expected = oracle(torch.tensor([prompt])).logits[0, -1]

    actual = run_divided(load_model(directory), batch_of([prompt]))[0].logits[0][0]

    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_tokenizer_loses_nothing(directory: Path) -> None:
    """Byte-level: any text comes back."""
    tokenizer = AutoTokenizer.from_pretrained(directory)

    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT


@pytest.mark.parametrize("vocab_size", [259, 512, 9000])
def test_every_id_has_a_text(tmp_path: Path, vocab_size: int) -> None:
    """From the bytes alone to more than is worth learning."""
    make_random_checkpoint(tmp_path, **{**tiny(), "vocab_size": vocab_size})

    tokens = AutoTokenizer.from_pretrained(tmp_path).convert_ids_to_tokens(list(range(vocab_size)))

    assert len(set(tokens) - {None}) == vocab_size


def test_chat_template_makes_turns(directory: Path) -> None:
    """One turn of the user, and the assistant's to come."""
    turns = [{"role": "user", "content": "hi"}]

    prompt = AutoTokenizer.from_pretrained(directory).apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )

    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_same_seed_makes_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    """Weights, tokenizer and configuration."""
    make_random_checkpoint(tmp_path, **tiny())

    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: p.read_bytes() for p in directory.iterdir()}


def test_sharding_changes_no_weight(directory: Path, tmp_path: Path) -> None:
    """The same model in files of at most 300 kB."""
    make_random_checkpoint(tmp_path, max_shard_bytes=300_000, **tiny())
    whole, sharded = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (directory, tmp_path))

    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 4
    assert all(torch.equal(sharded[name], tensor) for name, tensor in whole.items())


def test_too_small_a_vocabulary_is_refused(tmp_path: Path) -> None:
    """256 bytes and three special tokens need their ids."""
    with pytest.raises(ConfigError, match="vocab_size=258"):
        make_random_checkpoint(tmp_path, **{**tiny(), "vocab_size": 258})


def test_demo_model_is_of_the_size_it_says() -> None:
    """88 M parameters."""
    sizes = demo()
    hidden, layers = sizes["hidden"], sizes["num_layers"]
    experts = layers * sizes["num_experts"] * 3 * hidden * sizes["moe_intermediate"]
    attention = layers * hidden * sizes["head_dim"] * 2 * (sizes["num_heads"] + sizes["num_kv_heads"])

    assert round((experts + attention + 2 * sizes["vocab_size"] * hidden) / 1e6) == 88
