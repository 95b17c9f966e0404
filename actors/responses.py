"""OpenAI answers, whole or as the chunks of a stream, from the tokens of a DP group."""

from __future__ import annotations

import dataclasses
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asap_ray.actors.openai import GenerationBody
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.tokenizer import TextStream, Tokenizer
from asap_ray.actors.waiter import TokenEvent, Ttft
from asap_ray.batch import Token
from asap_ray.kvcache.transfer_params import RemotePrefill


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to a choice."""

    token: Token
    text: str
    offset: int  # where the text begins in the choice's
    finish_reason: str | None
    ttft: Ttft | None


@dataclass(slots=True)
class Choice:
    """The answer to one prompt so far."""

    index: int
    text_stream: TextStream | None
    pieces: list[Piece] = field(default_factory=list)
    num_chars: int = 0
    cached_tokens: int = 0  # of its prompt

    @property
    def finish_reason(self) -> str | None:
        """None while tokens are to come."""
        return self.pieces[-1].finish_reason if self.pieces else None

    def push(self, event: TokenEvent) -> Piece:
        """Append a token."""
        token, reason, text = event.token, event.token.finish_reason, ""
        self.cached_tokens += event.cached_tokens
        if self.text_stream:
            text = self.text_stream.push(token.token_id, is_last=reason is not None)
            reason = "stop" if self.text_stream.stopped else reason
        piece = Piece(token, text, self.num_chars, reason, event.ttft)
        self.pieces.append(piece)
        self.num_chars += len(text)
        return piece


class Answer(ABC):
    """One response: an envelope around the choices, one for each prompt."""

    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: ServedModel, body: GenerationBody, prompt_lengths: Sequence[int]) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._model = model
        self._body = body
        self._num_prompt_tokens = sum(prompt_lengths)
        self._created = int(time.time())
        self._choices = [
            Choice(index, TextStream(model.tokenizer, body.stop) if model.tokenizer else None)
            for index in range(len(prompt_lengths))
        ]
        self._handed_off: RemotePrefill | None = None
        self._by_request = {self.request_id(choice.index): choice for choice in self._choices}

    def request_id(self, index: int) -> str:
        """The id of one prompt inside the instance."""
        return f"{self.id}-{index}"

    @property
    def is_finished(self) -> bool:
        """Whether every choice has its last token."""
        return all(choice.finish_reason for choice in self._choices)

    def is_cut(self, event: TokenEvent) -> bool:
        """Whether a stop string ended the choice of a token, while a group goes on with it."""
        return not event.token.finish_reason and bool(self._by_request[event.token.request_id].finish_reason)

    def push(self, event: TokenEvent) -> dict[str, Any] | None:
        """Take a token; its chunk, or None if a stop string ended the choice before."""
        choice = self._by_request[event.token.request_id]
        if choice.finish_reason:
            return None
        piece = choice.push(event)
        self._handed_off = event.handed_off
        chunk = self._envelope(self.chunk_object, [self._chunk_choice(choice, piece)])
        if self._body.stream_options.include_usage:
            chunk["usage"] = None
        if piece.ttft:
            chunk["asap"] = {"ttft": dataclasses.asdict(piece.ttft)}
        return chunk | self._transfer()

    def whole(self) -> dict[str, Any]:
        """The body of a response that is no stream; the TTFT is the slowest prompt's."""
        answer = self._envelope(self.object, [self._whole_choice(choice) for choice in self._choices])
        slowest = max((c.pieces[0].ttft for c in self._choices if c.pieces[0].ttft), key=lambda ttft: ttft.total_s)
        return answer | {"usage": self._usage(), "asap": {"ttft": dataclasses.asdict(slowest)}} | self._transfer()

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for the usage."""
        return self._envelope(self.chunk_object, []) | {"usage": self._usage()}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model.name,
            "choices": choices,
        }

    def _transfer(self) -> dict[str, Any]:
        """For whoever takes the prompt to a decode instance."""
        return {"kv_transfer_params": dataclasses.asdict(self._handed_off)} if self._handed_off else {}

    def _usage(self) -> dict[str, Any]:
        num_completion_tokens = sum(len(choice.pieces) for choice in self._choices)
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_completion_tokens,
            "total_tokens": self._num_prompt_tokens + num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in self._choices)},
        }

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """What both dialects say of a choice, or of a part of one."""
        choice: dict[str, Any] = {
            "index": index,
            "finish_reason": pieces[-1].finish_reason,
            "logprobs": None if self._body.num_logprobs is None else self._logprobs(pieces),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [piece.token.token_id for piece in pieces]
        return choice

    @abstractmethod
    def _whole_choice(self, choice: Choice) -> dict[str, Any]: ...

    @abstractmethod
    def _chunk_choice(self, choice: Choice, piece: Piece) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]: ...


class CompletionAnswer(Answer):
    """`text_completion`."""

    prefix = "cmpl"
    object = chunk_object = "text_completion"

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return self._choice(choice.index, choice.pieces) | {"text": _text(choice.pieces)}

    def _chunk_choice(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return self._choice(choice.index, [piece]) | {"text": piece.text}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        tokenizer = self._model.tokenizer
        return {
            "tokens": [_spell(tokenizer, piece.token.token_id) for piece in pieces],
            "token_logprobs": [_finite(piece.token.logprob) for piece in pieces],
            "top_logprobs": [
                {_spell(tokenizer, token_id): _finite(logprob) for token_id, logprob in _candidates(piece.token)}
                for piece in pieces
            ],
            "text_offset": [piece.offset for piece in pieces],
        }


class ChatAnswer(Answer):
    """`chat.completion`."""

    prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": _text(choice.pieces), "refusal": None}
        return self._choice(choice.index, choice.pieces) | {"message": message}

    def _chunk_choice(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        role = {"role": "assistant"} if piece is choice.pieces[0] else {}
        return self._choice(choice.index, [piece]) | {"delta": role | {"content": piece.text}}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        content = [
            self._entry(piece.token.token_id, piece.token.logprob)
            | {"top_logprobs": [self._entry(token_id, logprob) for token_id, logprob in piece.token.top_logprobs]}
            for piece in pieces
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        tokenizer = self._model.tokenizer
        text = tokenizer.piece(token_id) if tokenizer else None
        return {
            "token": _spell(tokenizer, token_id),
            "logprob": _finite(logprob),
            "bytes": None if text is None else list(text.encode()),
        }


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _finite(logprob: float | None) -> float | None:
    """JSON has no minus infinity; OpenAI writes this instead."""
    return None if logprob is None else max(logprob, -9999.0)


def _candidates(token: Token) -> tuple[tuple[int, float | None], ...]:
    """The most likely tokens, and the chosen one whether it is among them or not."""
    return (*token.top_logprobs, (token.token_id, token.logprob))


def _spell(tokenizer: Tokenizer | None, token_id: int) -> str:
    """A token as text; part of a character as in the vocabulary, so that two tokens never read the same."""
    if tokenizer is None:
        return f"token_id:{token_id}"
    text = tokenizer.piece(token_id)
    return tokenizer.spelling(token_id) if text is None else text
