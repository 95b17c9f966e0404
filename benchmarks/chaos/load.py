"""Clients of an instance that is being struck: what they ask, and whether what comes back is allowed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from chaos.prompts import Asked, popularity

PATIENCE_S: Final = 180.0
"""A client that has heard nothing for so long was forgotten."""

PAUSE_S: Final = 0.05
BACK_OFF_S: Final = 0.5
LEAVES_S: Final = (0.001, 0.05)

GENERATE: Final = "/inference/v1/generate"
COMPLETIONS: Final = "/v1/completions"
RETRIABLE: Final = (429, 503)
REFUSED: Final = (400, 404, 405, 413)

BAD: Final[tuple[tuple[str, bytes], ...]] = (
    (COMPLETIONS, b""),
    (COMPLETIONS, b"{" * 2000),
    (COMPLETIONS, b'{"prompt": [-1]}'),
    (COMPLETIONS, b'{"prompt": [999999999999999999999]}'),
    (COMPLETIONS, b'{"prompt": [1], "max_tokens": 1e400}'),
    (COMPLETIONS, b'{"prompt": [[]]}'),
    (COMPLETIONS, b'{"prompt": "\xff"}'),
    (COMPLETIONS, json.dumps({"prompt": [1] * 9000}).encode()),
    (GENERATE, b'{"token_ids": [1.5], "sampling_params": {}}'),
    (GENERATE, b'{"token_ids": [1], "sampling_params": {"temperature": NaN}}'),
    (GENERATE, b'{"token_ids": [1], "sampling_params": {}, "kv_transfer_params": {"do_remote_decode": "x"}}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "", "content": 7}]}'),
    ("/detokenize", b'{"tokens": [512]}'),
    ("/v1/nothing", b"{}"),
)
"""Every one is the client's mistake."""


@dataclass
class Tally:
    """What came of all requests; a violation is what must never happen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    _violations: list[str] = field(default_factory=list)

    def violate(self, text: str) -> None:
        """Note it, and go on."""
        self.outcomes["violations"] += 1
        self._violations.append(text)

    def drain(self) -> list[str]:
        """The violations since the last time."""
        told, self._violations = self._violations, []
        return told


class Load:
    """Clients in a closed loop. `is_forgiving()` tells whether the frontend itself is or was just away."""

    def __init__(self, url: str, prompts: list[Asked], is_forgiving: Callable[[], bool], seed: int) -> None:
        self.tally = Tally()
        self._url = url
        self._prompts = prompts
        self._shares = popularity(len(prompts)).cumsum()
        self._is_forgiving = is_forgiving
        self._random = random.Random(seed)
        self._open = asyncio.Event()
        self._num_asking = 0

    async def client(self) -> None:
        """Ask, leave early or misbehave, again and again."""
        kinds = (self._ask, self._ask_stream, self._ask_two, self._leave, self._misbehave)
        async with httpx.AsyncClient(base_url=self._url, timeout=PATIENCE_S) as session:
            while True:
                await self._open.wait()
                self._num_asking += 1
                try:
                    (kind,) = self._random.choices(kinds, (6, 2, 2, 1, 1))
                    is_served = await self._guarded(kind, session)
                finally:
                    self._num_asking -= 1
                await asyncio.sleep(PAUSE_S if is_served else BACK_OFF_S)

    def resume(self) -> None:
        """Let the clients ask."""
        self._open.set()

    async def pause(self) -> None:
        """Until every client has its answer."""
        self._open.clear()
        async with asyncio.timeout(PATIENCE_S + 10):
            while self._num_asking:
                await asyncio.sleep(0.05)

    async def _guarded(self, kind: Callable[[httpx.AsyncClient], Any], session: httpx.AsyncClient) -> bool:
        """Whether the instance served; what the transport says is a violation unless the frontend was struck."""
        was_forgiving = self._is_forgiving()
        try:
            outcome: str = await kind(session)
        except httpx.TimeoutException:
            outcome = f"no answer within {PATIENCE_S:g} s"
        except httpx.TransportError as error:
            outcome = f"transport: {type(error).__name__}"
        if outcome in ("right", "left", "refused as it should be"):
            self.tally.outcomes[outcome] += 1
            return True
        if outcome.startswith("retriable "):
            self.tally.outcomes[outcome] += 1
        elif outcome.startswith("transport") and (was_forgiving or self._is_forgiving()):
            self.tally.outcomes[f"{outcome}, the frontend away"] += 1
        else:
            self.tally.violate(outcome)
        return False

    def _draw(self) -> Asked:
        return self._prompts[int(self._shares.searchsorted(self._random.random() * self._shares[-1]))]

    async def _ask(self, session: httpx.AsyncClient) -> str:
        """One prompt, its whole answer at once."""
        asked = self._draw()
        response = await session.post(GENERATE, json=_body(asked))
        if response.status_code != 200:
            return _status(response)
        return _verdict(asked, response.json()["choices"][0]["token_ids"])

    async def _ask_stream(self, session: httpx.AsyncClient) -> str:
        """One prompt, token by token; a loss behind the first is an event."""
        asked, ids = self._draw(), list[int]()
        async with session.stream("POST", GENERATE, json=_body(asked) | {"stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
                return _status(response)
            async for line in response.aiter_lines():
                if not line or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return _in_stream(event["error"])
                ids += event["choices"][0]["token_ids"]
        return _verdict(asked, ids)

    async def _ask_two(self, session: httpx.AsyncClient) -> str:
        """Two prompts in one request."""
        asked = [self._draw(), self._draw()]
        body = _sampling(min(len(each.answer) for each in asked))
        response = await session.post(COMPLETIONS, json=body | {"prompt": [each.token_ids for each in asked]})
        if response.status_code != 200:
            return _status(response)
        for each, choice in zip(asked, response.json()["choices"], strict=True):
            if (verdict := _verdict(each, choice["token_ids"])) != "right":
                return verdict
        return "right"

    async def _leave(self, session: httpx.AsyncClient) -> str:
        """Ask, and close the connection before the answer."""
        try:
            async with asyncio.timeout(self._random.uniform(*LEAVES_S)):
                await session.post(GENERATE, json=_body(self._draw()))
        except TimeoutError:
            pass
        return "left"

    async def _misbehave(self, session: httpx.AsyncClient) -> str:
        """A request that nobody may serve."""
        path, body = self._random.choice(BAD)
        response = await session.post(path, content=body)
        if response.status_code in REFUSED:
            return "refused as it should be"
        return f"{_status(response)} to the bad request {path} {body[:60]!r}"


def _sampling(num_tokens: int) -> dict[str, Any]:
    return {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def _body(asked: Asked) -> dict[str, Any]:
    return {"token_ids": asked.token_ids, "sampling_params": _sampling(len(asked.answer))}


def _verdict(asked: Asked, ids: list[int]) -> str:
    if ids and ids == asked.answer[: len(ids)]:
        return "right"
    return f"wrong answer to a prompt of {len(asked.token_ids)} tokens: {ids}, the reference says {asked.answer}"


def _status(response: httpx.Response) -> str:
    if response.status_code in RETRIABLE and "retry-after" in response.headers:
        return f"retriable {response.status_code}"
    return f"status {response.status_code}: {response.text[:200]}"


def _in_stream(error: dict[str, Any]) -> str:
    return "retriable event in a stream" if error["code"] == "not_ready" else f"error in a stream: {error}"
