"""The HTTP routes of an instance, prefill or decode: the OpenAI API over what generates tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from fastapi import FastAPI, HTTPException, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import ClientDisconnect

from asap_ray import __version__
from asap_ray.actors.api_key import key_required
from asap_ray.actors.bodies import Bodies
from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.http_errors import add_error_handlers, error_of
from asap_ray.actors.limits import Limits
from asap_ray.actors.openai import (
    ChatBody,
    CompletionBody,
    DeliveryBody,
    DetokenizeBody,
    GenerationBody,
    Message,
    TokenizeBody,
    check_token_ids,
    parse,
    quote,
)
from asap_ray.actors.openapi import ERRORS, STREAM, json_body
from asap_ray.actors.responses import Answer, ChatAnswer, CompletionAnswer
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.token_route import GenerateAnswer, GenerateBody
from asap_ray.actors.tokenizer import Tokenizer
from asap_ray.actors.waiter import TokenEvent
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.errors import AsapError, RequestError
from asap_ray.kvcache.transfer_params import Transfer, read_transfer

_T = TypeVar("_T")


class Service(Protocol):
    """What makes tokens of prompts: `PrefillService` and `DecodeService`."""

    config: ServeConfig
    model: ServedModel
    metrics: FrontendMetrics

    @property
    def limits(self) -> Limits:
        """What one prompt may ask."""

    def report(self) -> None:
        """Before a scrape: metrics that are read, not counted."""

    def check_ready(self) -> None:
        """Raise Unavailable, naming who is missing, unless requests can be served."""

    def check_count(self, num_prompts: int) -> None:
        """Refuse more prompts in one request than could ever be queued."""

    def generate(
        self, requests: Sequence[Request], cache_salt: str = "", transfer: Transfer | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Queue the prompts of one client, all or none, and yield their tokens as they come.

        `transfer` is of a single prompt; it is refused where it asks for the other kind of instance.
        """

    def stop(self, request_ids: Collection[str]) -> None:
        """No more tokens of these are wanted, though `generate` yields the next one of each: its last."""


def build_api(service: Service) -> FastAPI:
    """The application; `service` must live on the loop that serves it. Ray Serve echoes `X-Request-Id`.

    Raises:
        ConfigError: there is no API key where the configuration says.
    """
    key = key_required(service.config.api_key_from)
    api = FastAPI(
        title="asap-ray", version=__version__, docs_url=None, redoc_url=None, dependencies=key, responses=ERRORS
    )
    routes = Routes(service)
    for path, generate, body in (
        ("/v1/completions", routes.completions, CompletionBody),
        ("/v1/chat/completions", routes.chat_completions, ChatBody),
        ("/inference/v1/generate", routes.generate, GenerateBody),
    ):
        api.add_api_route(path, generate, methods=["POST"], responses=STREAM, openapi_extra=json_body(body))
    api.add_api_route("/tokenize", routes.tokenize, methods=["POST"], openapi_extra=json_body(TokenizeBody))
    api.add_api_route("/detokenize", routes.detokenize, methods=["POST"], openapi_extra=json_body(DetokenizeBody))
    api.add_api_route("/v1/models", routes.models)
    api.add_api_route("/v1/models/{name:path}", routes.one_model)
    api.add_api_route("/ready", routes.ready)
    api.add_api_route("/health", routes.alive, response_class=Response)
    for method in ("GET", "POST"):  # two operations, or the document would have one name for both
        api.add_api_route("/ping", routes.alive, methods=[method], response_class=Response)
    api.add_api_route("/version", routes.version)
    api.add_api_route("/metrics", routes.metrics, response_class=Response)
    add_error_handlers(api, service.metrics.refused)
    return api


class Routes:
    """One method a route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.model
        self._started = int(time.time())
        self._bodies = Bodies(service.config.max_queued_tokens)

    async def completions(self, http: HttpRequest) -> Response:
        """Continue each prompt: text, token ids, or a list of either."""
        async with self._bodies.read(http) as read:
            arrival_s = time.monotonic()
            body = parse(CompletionBody, read)
            self._check_model(body.model)
            if body.stop:
                self._tokenizer()  # without one no text can be searched
            self._service.check_count(len(body.prompt))  # before millions of them take time
            prompts = [await self._token_ids(prompt) for prompt in body.prompt]
        answer = CompletionAnswer(self._model, body, [len(ids) for ids in prompts])
        return await self._generate(http, body, answer, self._requests(body, answer, prompts, arrival_s))

    async def chat_completions(self, http: HttpRequest) -> Response:
        """Answer a conversation."""
        async with self._bodies.read(http) as read:
            arrival_s = time.monotonic()
            body = parse(ChatBody, read)
            self._check_model(body.model)
            prompts = [await self._chat_token_ids(body.messages, body.chat_template_kwargs)]
        answer = ChatAnswer(self._model, body, [len(ids) for ids in prompts])
        return await self._generate(http, body, answer, self._requests(body, answer, prompts, arrival_s))

    async def generate(self, http: HttpRequest) -> Response:
        """Token ids in, token ids out: vLLM's route for instances that work as a pair."""
        async with self._bodies.read(http) as read:
            arrival_s = time.monotonic()
            body = parse(GenerateBody, read)
        self._check_model(body.model)
        check_token_ids(body.token_ids, "token_ids", self._model.vocab_size)
        answer = GenerateAnswer(self._model, body)
        requests = self._requests(body.sampling_params, answer, [body.token_ids], arrival_s)
        return await self._generate(http, body, answer, requests)

    async def tokenize(self, http: HttpRequest) -> dict[str, Any]:
        """Token ids of a prompt or of a conversation, without running anything."""
        async with self._bodies.read(http) as read:
            body = parse(TokenizeBody, read)
            self._check_model(body.model)
            if (body.prompt is None) == (body.messages is None):
                raise RequestError("exactly one of prompt and messages is needed", "prompt")
            if body.messages is not None:
                ids = await self._chat_token_ids(body.messages, body.chat_template_kwargs)
            else:
                ids = await self._encode(body.prompt or "", body.add_special_tokens)
        spelled = [self._tokenizer().spelling(token_id) for token_id in ids] if body.return_token_strs else None
        return {
            "count": len(ids),
            "max_model_len": self._service.limits.max_prompt_tokens,
            "tokens": ids,
            "token_strs": spelled,
        }

    async def detokenize(self, http: HttpRequest) -> dict[str, str]:
        """Text of token ids."""
        async with self._bodies.read(http) as read:
            body = parse(DetokenizeBody, read)
        self._check_model(body.model)
        check_token_ids(body.tokens, "tokens", self._model.vocab_size)
        return {"prompt": self._tokenizer().decode(body.tokens)}

    async def models(self) -> dict[str, Any]:
        """The one model served; a prompt within its `max_model_len` is never refused for its length."""
        return {"object": "list", "data": [self._model_card()]}

    async def one_model(self, name: str) -> dict[str, Any]:
        """The one model served, by name."""
        if name != self._model.name:
            raise HTTPException(404, f"model {quote(name)} does not exist; this instance serves {self._model.name!r}")
        return self._model_card()

    async def ready(self) -> dict[str, bool]:
        """Readiness: 503, naming who is missing, unless every device serves."""
        self._service.check_ready()
        return {"ready": True}

    async def alive(self) -> Response:
        """Liveness: this process answers, whatever its devices do."""
        return Response()

    async def version(self) -> dict[str, str]:
        """The release."""
        return {"version": __version__}

    async def metrics(self) -> Response:
        """What Prometheus scrapes: vLLM's names."""
        self._service.report()
        return Response(self._service.metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._model.name):
            raise RequestError(
                f"model {quote(name)} does not exist; this instance serves {self._model.name!r}", "model"
            )

    def _tokenizer(self) -> Tokenizer:
        if self._model.tokenizer is None:
            raise RequestError(f"model {self._model.name!r} has no tokenizer; send token ids", "prompt")
        return self._model.tokenizer

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """In a thread: a long text would hold up every other client."""
        tokenizer = self._tokenizer()
        return await asyncio.to_thread(
            tokenizer.encode, text, self._service.limits.max_prompt_tokens, add_special_tokens
        )

    async def _token_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special_tokens=True)
        check_token_ids(prompt, "prompt", self._model.vocab_size)
        return prompt

    async def _chat_token_ids(self, messages: Sequence[Message], options: Mapping[str, Any]) -> list[int]:
        turns = [message.model_dump() for message in messages]
        text = await asyncio.to_thread(self._tokenizer().apply_chat_template, turns, options)
        return await self._encode(text, add_special_tokens=False)  # the template wrote them

    def _requests(
        self, body: GenerationBody, answer: Answer, prompts: Sequence[list[int]], arrival_s: float
    ) -> list[Request]:
        """One request a prompt, in their order; the service checks them."""
        return [
            Request(
                request_id=answer.request_id(index),
                num_tokens=len(ids),
                arrival_s=arrival_s,
                token_ids=np.asarray(ids, dtype="<i4").tobytes(),
                sampling=body.sampling(self._model.end_token_ids, self._service.limits.longest_answer(len(ids))),
            )
            for index, ids in enumerate(prompts)
        ]

    async def _generate(
        self, http: HttpRequest, body: DeliveryBody, answer: Answer, requests: Sequence[Request]
    ) -> Response:
        transfer = read_transfer(body.kv_transfer_params)
        if transfer and len(requests) > 1:
            raise RequestError(f"{len(requests)} prompts with kv_transfer_params; they are for one", "prompt")
        events = self._service.generate(requests, body.cache_salt or "", transfer)
        if not body.stream:
            await _unless_gone(http, self._collect(answer, events))
            return JSONResponse(answer.whole())
        # Headers wait for the first token, so that a failure before it still has its status.
        first = await _unless_gone(http, anext(events))
        chunks = self._server_sent(answer, first, events, body.stream_options.include_usage)
        return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    def _push(self, answer: Answer, event: TokenEvent) -> dict[str, Any] | None:
        """See `Answer.push`; a group that decodes beyond a stop string is told to end it."""
        chunk = answer.push(event)
        if answer.is_cut(event):
            self._service.stop([event.token.request_id])
        return chunk

    async def _collect(self, answer: Answer, events: AsyncGenerator[TokenEvent, None]) -> None:
        async for event in events:
            self._push(answer, event)
            if answer.is_finished:  # by a stop string, perhaps while the group still decodes
                break
        await events.aclose()

    async def _server_sent(
        self, answer: Answer, first: TokenEvent, events: AsyncGenerator[TokenEvent, None], include_usage: bool
    ) -> AsyncGenerator[str, None]:
        """A chunk a token, the usage if asked for, and the end mark; an error on the way is an event too."""
        event: TokenEvent | None = first
        try:
            while event:
                if chunk := self._push(answer, event):
                    yield _sse(chunk)
                event = None if answer.is_finished else await anext(events, None)
            if include_usage:
                yield _sse(answer.usage_chunk())
        except AsapError as error:
            status, message, _ = error_of(error)
            self._service.metrics.refused(status)
            yield _sse(message)
        finally:
            await events.aclose()
        yield "data: [DONE]\n\n"

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._started,
            "owned_by": "asap-ray",
            "root": self._model.name,
            "parent": None,
            "max_model_len": self._service.limits.max_prompt_tokens,
            "vocab_size": self._model.vocab_size,
            "permission": [],
        }


def _sse(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'), allow_nan=False)}\n\n"


async def _unless_gone(http: HttpRequest, work: Awaitable[_T]) -> _T:
    """The result of `work`; if the client leaves first, `work` is cancelled and ClientDisconnect raised."""
    running, gone = asyncio.ensure_future(work), asyncio.create_task(_gone(http))
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientDisconnect
        return running.result()
    finally:
        running.cancel()
        gone.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
