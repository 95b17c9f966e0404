"""Text to token ids and back, from the files of a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tokenizers
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asap_ray.errors import ConfigError, RequestError

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no character, or not yet one."""


class Tokenizer:
    """`tokenizer.json`, and the chat template if there is one. Safe to call from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, template: Template | None, special: Mapping[str, str]) -> None:
        self._backend = backend
        self._template = template
        self._special = dict(special)  # bos_token and the like, which templates name
        self._longest_token = max(map(len, backend.get_vocab()))

    def encode(self, text: str, max_tokens: int, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt.

        Raises:
            RequestError: the text is longer than `max_tokens` of the longest token; it was not read.
        """
        if len(text) > max_tokens * self._longest_token:
            raise RequestError(f"prompt has {len(text)} characters; the limit is {max_tokens} tokens", "prompt")
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def piece(self, token_id: int) -> str | None:
        """One token as text; None if it is only part of a character."""
        once, twice = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        text: str = twice[len(once) :]  # after itself, because some decoders drop a leading space
        return None if _REPLACEMENT in text else text

    def spelling(self, token_id: int) -> str:
        """One token as the vocabulary spells it."""
        return self._backend.id_to_token(token_id) or ""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt a conversation makes; `options` reach the template by name.

        Raises:
            RequestError: the model has no chat template, or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError("this model has no chat template; send the prompt to /v1/completions", "messages")
        names = {**self._special, **options, "messages": messages, "add_generation_prompt": True}
        try:
            return self._template.render(names)
        except Exception as error:  # a template is a program, and a client chooses its names
            raise RequestError(f"the chat template refuses these messages: {error}", "messages") from None


class TextStream:
    """The text of a growing list of tokens. What it returns, joined, is `decode` of them all.

    Bytes that may yet become a character are held back, and so is text that may yet become a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []  # since the last clean break, and the piece before it
        self._num_known = 0  # how many of them are out
        self._held = ""

    def push(self, token_id: int, is_last: bool) -> str:
        """Text that `token_id` settles; `stopped` is set, and the rest cut off, at a stop string."""
        self._held += self._decoded(token_id, is_last)
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(self._held) - (0 if is_last else self._num_undecided())
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _decoded(self, token_id: int, is_last: bool) -> str:
        # A piece is decoded after the one before it: decoders treat the first token of a text differently.
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_REPLACEMENT) and not is_last:
            return ""
        known = self._tokenizer.decode(self._ids[: self._num_known])
        self._ids = self._ids[self._num_known :]
        self._num_known = len(self._ids)
        return text[len(known) :]

    def _num_undecided(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(max(map(len, self._stop), default=1) - 1, len(self._held))
        ends = range(longest, 0, -1)
        return next((n for n in ends if any(stop.startswith(self._held[-n:]) for stop in self._stop)), 0)


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint; None if it has none, and then only token ids can be served.

    Raises:
        ConfigError: a file is there and cannot be read; names it.
    """
    path, config_path = directory / "tokenizer.json", directory / "tokenizer_config.json"
    template_path = directory / "chat_template.jinja"
    if not path.exists():
        return None
    with _reading(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
        backend.no_truncation()
        backend.no_padding()
        if not backend.get_vocab():
            raise ValueError("its vocabulary is empty")
    with _reading(config_path):
        config = _json_object(config_path) if config_path.exists() else {}
        special = _special(config)
    if template_path.exists():
        with _reading(template_path):
            return Tokenizer(backend, _compiled(template_path.read_text(encoding="utf-8")), special)
    with _reading(config_path):
        return Tokenizer(backend, _template(config.get("chat_template")), special)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file, its name is told."""
    try:
        yield
    except Exception as error:  # the libraries raise no narrower type
        raise ConfigError(f"cannot read {path}: {type(error).__name__}: {error}") from None


def _json_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("an object was expected")
    return content


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, strings or objects with a string inside; `add_bos_token` is a switch, and neither."""
    texts: dict[str, str] = {}
    for name, token in config.items():
        if name.endswith("_token") and isinstance(token, str | dict):
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str):
                raise ValueError(f"{name} has no text as its content")
            texts[name] = text
    return texts


def _template(source: Any) -> Template | None:
    """The template of a configuration, which may hold several by name."""
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return None if source is None else _compiled(source)


def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which a prompt is not."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
