"""An OpenAI-compatible endpoint as the target of a replay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from asap_ray.errors import ConfigError
from asap_ray.workload.client import Reply

KEEPALIVE_S: Final = 2.0
"""Below the 5 s after which common servers close an idle connection, lest a request meet the closing."""

ERROR_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What an endpoint says of its first model; None where it does not say."""

    name: str
    max_model_len: int | None
    vocab_size: int | None


class HttpTarget:
    """Streams completions of token-id prompts from `/v1/completions`."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model

    async def send(self, prompt_ids: list[int], max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        """The first SSE event with a choice is the first token."""
        body = {
            "model": self._model,
            "prompt": prompt_ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                return Reply(response.status_code, _error_text(await response.aread()))
            parts: dict[str, float] = {}
            waiting = True
            async for event in _events(response):
                if "error" in event:
                    return Reply(response.status_code, _message(event), parts)
                if waiting and event.get("choices"):
                    on_first_token()
                    waiting = False
                parts = event.get("asap", {}).get("ttft", parts)
            return Reply(response.status_code, None, parts)


@asynccontextmanager
async def connect(url: str, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client with as many connections as there are open requests; `url` may end in /v1, as OpenAI's does.

    Proxies of the environment are ignored: their delay would be measured too. No timeout here: `Plan` has one.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
    try:
        client = httpx.AsyncClient(base_url=root, headers=headers, limits=limits, timeout=None, trust_env=False)
    except httpx.InvalidURL as error:
        raise ConfigError(f"url {url!r}: {error}") from None
    async with client:
        yield client


async def served_model(client: httpx.AsyncClient, timeout_s: float = 10.0) -> ServedModel:
    """Ask an endpoint what it serves.

    Raises:
        ConfigError: nobody answers there, or not as an OpenAI endpoint does.
    """
    url = client.base_url.join("/v1/models")
    try:
        response = await client.get("/v1/models", timeout=timeout_s)
        response.raise_for_status()
        first = response.json()["data"][0]
        return ServedModel(first["id"], first.get("max_model_len"), first.get("vocab_size"))
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{url} does not list an OpenAI model: {type(error).__name__}: {error}") from None


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of an SSE stream, up to [DONE]."""
    async for line in response.aiter_lines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])


def _error_text(body: bytes) -> str:
    try:
        return _message(json.loads(body))
    except ValueError:
        return body.decode(errors="replace")[:ERROR_CHARS]


def _message(body: Any) -> str:
    """The message of an OpenAI error, or whatever came instead."""
    error = body.get("error") if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body)[:ERROR_CHARS]
