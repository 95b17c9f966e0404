"""Tokens to text, one at a time; chat templates."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from asap_ray.actors.tokenizer import TextStream, Tokenizer, load_tokenizer
from asap_ray.errors import ConfigError, RequestError

MESSAGES = [{"role": "user", "content": "hi <b> é"}]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    """The byte-level tokenizer of the checkpoint."""
    loaded = load_tokenizer(checkpoint)
    assert loaded
    return loaded


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint, to be changed."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def pushed(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    """What each token settles."""
    stream = TextStream(tokenizer, stop)
    return [stream.push(token_id, is_last=k + 1 == len(ids)) for k, token_id in enumerate(ids)]


def test_a_character_is_emitted_whole(tokenizer: Tokenizer) -> None:
    """The three bytes of a euro are three tokens of this vocabulary, and leave as one piece."""
    ids = [token_id for text in (" ", "€", "x") for token_id in tokenizer.encode(text, 9)]

    assert pushed(tokenizer, ids) == [" ", "", "", "€", "x"]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_joined_are_the_whole_text(tokenizer: Tokenizer, seed: int) -> None:
    """Random ids are mostly broken UTF-8, and still nothing is lost or doubled."""
    ids = random.Random(seed).choices(range(1, 320), k=40)

    assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)


def test_pieces_keep_spaces_of_a_decoder_that_strips_them() -> None:
    """SentencePiece-like decoders drop the first space of a text, not the first of each piece."""
    backend = tokenizers.Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2}, unk_token="c"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend, None, {})

    assert pushed(tokenizer, [0, 1, 2, 1]) == ["a", " b", "c", " b"]
    assert tokenizer.piece(1) == " b"


def test_part_of_a_character_is_no_piece(tokenizer: Tokenizer) -> None:
    """It has only the vocabulary's spelling."""
    part = tokenizer.encode("€", 9)[0]

    assert tokenizer.piece(part) is None
    assert tokenizer.spelling(part) == "â"


def test_text_that_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    """And comes out as soon as it cannot."""
    ids = [tokenizer.encode(letter, 9)[0] for letter in "xabay"]

    assert pushed(tokenizer, ids, stop=("abc", "bb")) == ["x", "", "", "ab", "ay"]


def test_the_first_of_several_stop_strings_wins(tokenizer: Tokenizer) -> None:
    """Wherever it stands in the list; nothing of it is emitted."""
    ids = [tokenizer.encode(letter, 9)[0] for letter in "xabc"]

    assert "".join(pushed(tokenizer, ids[:3], stop=("b", "ab"))) == "x"


def test_a_text_longer_than_its_tokens_could_be_is_not_tokenized(tokenizer: Tokenizer) -> None:
    """Ten tokens of the longest kind hold fewer characters."""
    with pytest.raises(RequestError, match="10000 characters; the limit is 10 tokens"):
        tokenizer.encode("x" * 10_000, max_tokens=10)


def test_a_template_file_comes_before_the_configuration(copy: Path) -> None:
    """Newer checkpoints have chat_template.jinja."""
    (copy / "chat_template.jinja").write_text("{{ eos_token }}{{ messages[0].content | tojson }}{{ thinking }}")
    tokenizer = load_tokenizer(copy)
    assert tokenizer

    assert tokenizer.apply_chat_template(MESSAGES, {"thinking": False}) == '<|end|>"hi <b> é"False'


def test_the_default_of_several_templates_is_taken(copy: Path) -> None:
    """A configuration may hold a list of them."""
    templates = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (copy / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    tokenizer = load_tokenizer(copy)
    assert tokenizer

    assert tokenizer.apply_chat_template(MESSAGES, {}) == "yes"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "unsafe|not callable|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ range(10**9) }}", "Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_a_template_may_refuse_but_not_reach_out(copy: Path, template: str, reason: str) -> None:
    """Templates come with a checkpoint: they run in a sandbox."""
    (copy / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(copy)
    assert tokenizer

    with pytest.raises(RequestError, match=reason):
        tokenizer.apply_chat_template(MESSAGES, {})


def test_no_template_means_no_chat(copy: Path) -> None:
    """Said with what to do instead."""
    (copy / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(copy)
    assert tokenizer

    with pytest.raises(RequestError, match="send the prompt to /v1/completions"):
        tokenizer.apply_chat_template(MESSAGES, {})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{% {"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b'{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}}'),
        ("tokenizer_config.json", b"{% {"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"eos_token": {"special": true}}'),
        ("tokenizer_config.json", b'{"chat_template": 3}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", b'{"chat_template": "{% {"}'),
        ("chat_template.jinja", b"{% {"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_an_unreadable_file_is_named(copy: Path, name: str, content: bytes) -> None:
    """At start-up, not at the first request."""
    (copy / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"cannot read {copy / name}: "):
        load_tokenizer(copy)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_directory_in_place_of_a_file_is_named(copy: Path, name: str) -> None:
    """As a wrong mount makes one."""
    (copy / name).unlink(missing_ok=True)
    (copy / name).mkdir()
    with pytest.raises(ConfigError, match=f"cannot read {copy / name}: "):
        load_tokenizer(copy)


def test_templates_know_special_tokens_only(copy: Path) -> None:
    """Strings, or objects with a string inside; `add_bos_token` is a switch, no token."""
    special = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "add_bos_token": True}
    template = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}"
    (copy / "tokenizer_config.json").write_text(json.dumps(special | {"chat_template": template}))
    tokenizer = load_tokenizer(copy)
    assert tokenizer

    assert tokenizer.apply_chat_template(MESSAGES, {}) == "<s></s>FalseFalse"


def test_a_checkpoint_without_tokenizer_has_none(tmp_path: Path) -> None:
    """Token ids are still served."""
    assert load_tokenizer(tmp_path) is None
