"""Token ids in, token ids out: the bodies of vLLM's `/inference/v1/generate`, for what needs no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from asap_ray.actors.limits import MAX_LOGPROBS
from asap_ray.actors.openai import DeliveryBody, GenerationBody, quote
from asap_ray.actors.responses import ChatAnswer, Choice, Piece
from asap_ray.actors.served_model import ServedModel
from asap_ray.errors import RequestError


def _no_stops(value: list[str]) -> list[str]:
    if value:
        raise RequestError(f"stop={quote(value)} needs text; this route has token ids alone: stop_token_ids", "stop")
    return value


class SamplingParams(GenerationBody):
    """vLLM's name for what is asked of the tokens to come."""

    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stop: Annotated[list[str], AfterValidator(_no_stops)] = []  # noqa: RUF012 - pydantic copies it

    @property
    def num_logprobs(self) -> int | None:
        """See `Sampling.num_logprobs`."""
        return self.logprobs


class GenerateBody(DeliveryBody):
    """POST /inference/v1/generate."""

    request_id: str | None = None
    token_ids: Annotated[list[int], Field(min_length=1)]
    sampling_params: SamplingParams


class GenerateAnswer(ChatAnswer):
    """Its answer: no text, and the id that the client gave. Log-probabilities are those of chat."""

    prefix = "generate-tokens"

    def __init__(self, model: ServedModel, body: GenerateBody) -> None:
        sampling = body.sampling_params.model_copy(update={"stream_options": body.stream_options})
        super().__init__(model, sampling, [len(body.token_ids)])
        self._request_id = body.request_id or self.id

    def whole(self) -> dict[str, Any]:
        """See `Answer`; what vLLM always has is there, and null where there is none."""
        return {"prompt_logprobs": None, "kv_transfer_params": None} | super().whole()

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ARG002
        return {"request_id": self._request_id, "choices": choices}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return self._tokens(choice.index, choice.pieces)

    def _chunk_choice(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return self._tokens(choice.index, [piece])

    def _tokens(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        return self._choice(index, pieces) | {"token_ids": [piece.token.token_id for piece in pieces]}
