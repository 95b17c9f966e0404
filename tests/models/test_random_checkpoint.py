"""Random checkpoints are ordinary ones: `transformers` loads them unmodified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from asap_ray.errors import ConfigError
from asap_ray.models.families import FAMILIES
from asap_ray.models.model import load_model
from asap_ray.models.random_checkpoint import demo, make_random_checkpoint, tiny
from asap_ray.models.random_config import config_of
from tests.models.divided import batch_of, run_divided

TEXT = "Read the manual, then: naïve 世界 `import this`\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    made = tmp_path_factory.mktemp("tiny")
    make_random_checkpoint(made, **tiny())
    return made


@pytest.fixture(scope="module", params=FAMILIES)
def of_family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A tiny model of each family, as `transformers` loads it, and what it says about loading."""
    made = tmp_path_factory.mktemp("family")
    make_random_checkpoint(made, family=request.param, **tiny())
    config = json.loads((made / "config.json").read_text())
    if request.param == "kimi_k2":  # `transformers` knows its class by the other name only
        shutil.copytree(made, made / "oracle")
        (made / "oracle" / "config.json").write_text(json.dumps(config | {"model_type": "deepseek_v3"}))
    source = made / "oracle" if (made / "oracle").exists() else made
    oracle, loading = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True)
    return made, oracle, loading


def test_transformers_finds_every_weight_and_no_other(of_family: tuple[Path, Any, Any]) -> None:
    """No key is missing, unexpected or of another shape."""
    _, _, loading = of_family

    assert [loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set()] * 3


def test_both_loaders_make_the_same_logits(of_family: tuple[Path, Any, Any]) -> None:
    """Its own tokenizer, a text longer than what sparse attention chooses."""
    directory, oracle, _ = of_family
    prompt = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(TEXT * 5).ids
    with torch.no_grad():
        expected = oracle(torch.tensor([prompt])).logits[0, -1]

    actual = run_divided(load_model(directory), batch_of([prompt]))[0].logits[0][0]

    assert len(prompt) > 102
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    """With those there are; nothing is written."""
    with pytest.raises(ConfigError, match="family='llama' must be one of deepseek_v3, deepseek_v32, glm4_moe"):
        make_random_checkpoint(tmp_path / "model", family="llama", **tiny())

    assert not (tmp_path / "model").exists()


def test_every_served_family_can_be_made() -> None:
    """A recipe for each."""
    assert all(config_of(family, tiny())["model_type"] == family for family in FAMILIES)


def test_contradicting_sizes_are_refused(tmp_path: Path) -> None:
    """As a checkpoint that has them would be; nothing is written."""
    with pytest.raises(ConfigError, match="num_experts_per_tok=9 exceeds the 8 experts"):
        make_random_checkpoint(tmp_path / "model", family="deepseek_v3", **{**tiny(), "top_k": 9})

    assert not (tmp_path / "model").exists()


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
