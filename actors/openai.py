"""OpenAI request bodies and errors: what is checked before a prompt reaches the scheduler.

Unknown fields are tolerated, because routers add some. A known field that would change the answer
and is not supported is refused by name unless it has the value that changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from asap_ray.actors.limits import MAX_LOGPROBS, MAX_TEMPERATURE, SEEDS
from asap_ray.batch import Sampling
from asap_ray.errors import RequestError

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for completions; ours for chat too, where theirs is no limit, as our decode is slow."""

MAX_STOPS: Final = 16

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Fields that change the answer, with the values that do not."""

_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: ("invalid_request_error", "invalid_api_key"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "queue_full"),
    HTTPStatus.SERVICE_UNAVAILABLE: ("unavailable_error", "not_ready"),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("server_error", "internal_error"),
}

Prompt = str | list[int]
_Body = TypeVar("_Body", bound="Body")


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The OpenAI error shape."""
    kind, code = _TYPES.get(HTTPStatus(status), ("invalid_request_error", None))
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def quote(value: Any) -> str:
    """A value as an error message shows it: never longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_token_ids(ids: list[Any], where: str, vocab_size: int) -> None:
    """Refuse what is no token id.

    Raises:
        RequestError: names the first such element, its value and the limit.
    """
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) < vocab_size:
        return
    at = next(k for k, x in enumerate(ids) if type(x) is not int or not 0 <= x < vocab_size)
    raise RequestError(
        f"{where}[{at}]={quote(ids[at])} is not a token id; ids are integers in 0..{vocab_size - 1}", where
    )


def _prompts(value: Any) -> list[Prompt]:
    """The four forms of a prompt as one list; elements of token ids are checked later, with the vocabulary."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError(f"prompt={quote(value)}: must be text, token ids, or a non-empty list of either", "prompt")
    kinds = set(map(type, value))
    if kinds in ({str}, {list}):
        return value
    if kinds & {str, list}:
        raise RequestError("prompt mixes texts and token ids; send one kind", "prompt")
    return [value]


def _content(value: Any) -> str:
    """A message's text: a string, or the text parts of a list, joined by newlines."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise RequestError(f"content={quote(value)}: must be text or a list of text parts", "messages")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f'content part {quote(part)}: only {{"type": "text", "text": ...}} is served', "messages"
            )
    return "\n".join(part["text"] for part in value)


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Body(BaseModel):
    """What all bodies share. A null is an absent field."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        given = {name: value for name, value in fields.items() if value is not None}
        for name, neutral in _NEUTRAL.items():
            if name in given and given[name] not in neutral:
                raise RequestError(f"{name}={quote(given[name])} is not supported; leave it out", name)
        return given


class StreamOptions(BaseModel):
    """`include_usage` asks for one more chunk at the end of a stream."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class Message(BaseModel):
    """One turn of a conversation; further fields reach the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: Annotated[str, BeforeValidator(_content, json_schema_input_type=str | list[dict[str, Any]] | None)] = ""


Messages = Annotated[list[Message], Field(min_length=1)]


class DeliveryBody(Body):
    """How an answer comes, and who shares keys and values of its prompt, or goes on from them (docs/http.md)."""

    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    kv_transfer_params: dict[str, Any] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None


class GenerationBody(DeliveryBody):
    """What completions and chat completions share."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=SEEDS.start, lt=SEEDS.stop)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS), BeforeValidator(_stops)
    ] = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOPS)] = []
    return_token_ids: bool = False

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """See `Sampling.num_logprobs`."""

    def sampling(self, end_token_ids: tuple[int, ...], longest_answer: int) -> Sampling:
        """What the engine needs to know; `Limits.check` refuses what is too long for it.

        Raises:
            RequestError: `min_tokens` cannot be kept.
        """
        asked = self.max_completion_tokens or self.max_tokens
        max_tokens = asked or max(1, min(DEFAULT_MAX_TOKENS, longest_answer))
        if self.min_tokens > (max_tokens if self.ignore_eos else 1):
            raise RequestError(
                f"min_tokens={self.min_tokens} is not supported; at most 1, or max_tokens with ignore_eos", "min_tokens"
            )
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            num_logprobs=self.num_logprobs,
            stop_token_ids=(*(() if self.ignore_eos else end_token_ids), *self.stop_token_ids),
        )


def _count_or_false(value: Any) -> Any:
    """Some routers send `logprobs: false` where OpenAI has a number."""
    return None if value is False else value


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[
        list[Prompt], PlainValidator(_prompts, json_schema_input_type=Prompt | list[str] | list[list[int]])
    ]
    logprobs: Annotated[Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None, BeforeValidator(_count_or_false)] = None

    @property
    def num_logprobs(self) -> int | None:
        """See `Sampling.num_logprobs`."""
        return self.logprobs


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    @property
    def num_logprobs(self) -> int | None:
        """See `Sampling.num_logprobs`."""
        if self.top_logprobs and not self.logprobs:
            raise RequestError(f"top_logprobs={self.top_logprobs} needs logprobs=true", "top_logprobs")
        return self.top_logprobs if self.logprobs else None


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or the messages of a chat."""

    prompt: str | None = None
    messages: Messages | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[int]


def parse(kind: type[_Body], raw: bytes | bytearray) -> _Body:
    """A body from its JSON.

    Raises:
        RequestError: names the field, its value and the limit.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _first(error) from None


def _first(error: ValidationError) -> RequestError:
    """The first thing wrong with a body, as one line."""
    found = error.errors(include_url=False)[0]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return cause
    if not found["loc"]:
        return RequestError(f"the body is not a JSON object: {found['msg']}")
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "missing":
        return RequestError(f"{where} is missing", where)
    return RequestError(f"{where}={quote(found['input'])}: {found['msg'][:1].lower()}{found['msg'][1:]}", where)
