"""Clients that send or read a byte at a time hold their own connection and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from asap_ray.actors.bodies import LONGEST_BODIES
from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.config import ServeConfig
from tests.http.echo_groups import EchoGroups

STREAM = {"prompt": [7, 8], "max_tokens": 100, "stream": True}


class Connection:
    """One POST to an ASGI application, as a server would make it; its client takes what `take` says, when it says."""

    def __init__(self, body: bytes, *, is_whole: bool = True, step: int = 1) -> None:
        self.body = body  # what it has not sent yet
        self._step = step
        self._is_whole = is_whole
        self._left = asyncio.Event()
        self.taken = asyncio.Semaphore(0)  # messages that the client has room for
        self.messages: list[MutableMapping[str, Any]] = []
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """The next `step` bytes of the body, and after the last one nothing until the client leaves."""
        if not self.body:
            await self._left.wait()
            return {"type": "http.disconnect"}
        part, self.body = self.body[: self._step], self.body[self._step :]
        return {"type": "http.request", "body": part, "more_body": bool(self.body) or not self._is_whole}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """As a server whose buffer is full: it waits for the client."""
        await self.taken.acquire()
        self.messages.append(message)

    def leave(self) -> None:
        """Hang up."""
        self._left.set()


def test_a_client_that_does_not_read_holds_no_slot(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Its batch ends, others are served, and when it reads at last it gets every token."""

    async def scenario() -> tuple[int, int, str]:
        service = PrefillService(config, model, groups)
        api = build_api(service)
        slow = Connection(json.dumps(STREAM).encode())
        reading = asyncio.create_task(api(slow.scope, slow.receive, slow.send))
        while not groups.num_finished:
            await asyncio.sleep(0)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://instance") as client:
            other = await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
        num_messages = len(slow.messages)
        for _ in range(1000):
            slow.taken.release()
        await reading
        await service.close()
        return other.status_code, num_messages, b"".join(each.get("body", b"") for each in slow.messages).decode()

    status, num_messages, text = asyncio.run(scenario())
    assert (status, num_messages) == (200, 0)
    assert text.count('"choices":[{') == 100
    assert text.endswith("data: [DONE]\n\n")


def test_a_client_that_sends_a_byte_at_a_time_is_served(
    config: ServeConfig, model: ServedModel, groups: EchoGroups
) -> None:
    """If it is done before the deadline of a body; nothing runs until then."""

    async def scenario() -> int:
        slow = Connection(json.dumps({"prompt": [1], "max_tokens": 1}).encode())
        slow.taken.release()
        slow.taken.release()
        await build_api(PrefillService(config, model, groups))(slow.scope, slow.receive, slow.send)
        return int(slow.messages[0]["status"])

    assert asyncio.run(scenario()) == 200


def test_a_body_that_does_not_end_is_refused(
    config: ServeConfig, model: ServedModel, groups: EchoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a deadline, in the OpenAI shape; no group hears of it."""
    monkeypatch.setattr("asap_ray.actors.bodies._BODY_S", 0.01)

    async def scenario() -> tuple[int, str]:
        slow = Connection(b'{"prompt": [1', is_whole=False)
        slow.taken.release()
        slow.taken.release()
        await build_api(PrefillService(config, model, groups))(slow.scope, slow.receive, slow.send)
        return int(slow.messages[0]["status"]), json.loads(slow.messages[1]["body"])["error"]["message"]

    assert asyncio.run(scenario()) == (408, "13 bytes of the body came within 0.01 s, and not all of it")
    assert groups.batches == []


def test_stalled_bodies_have_a_bound(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Clients that stop in the middle of long bodies: one more byte than they may all hold is 429, and room comes back.

    A body of the queue's 128 tokens may have 2048 bytes and 64 KiB; they may hold sixteen of those.
    """
    longest = b"[" + b"1," * ((16 * config.max_queued_tokens + (1 << 16) - 1) // 2)

    async def scenario() -> tuple[list[int], str]:
        api = build_api(PrefillService(config, model, groups))
        stalled = [Connection(longest, is_whole=False, step=len(longest)) for _ in range(LONGEST_BODIES)]
        reading = [asyncio.create_task(api(each.scope, each.receive, each.send)) for each in stalled]
        while any(each.body for each in stalled):
            await asyncio.sleep(0)
        statuses, messages = [], []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://instance") as client:
            for _ in range(2):
                answer = await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
                statuses.append(answer.status_code)
                messages.append(answer.text)
                for each in stalled:
                    each.leave()
                    for _ in range(2):
                        each.taken.release()
                await asyncio.gather(*reading)
        return statuses, json.loads(messages[0])["error"]["message"]

    statuses, message = asyncio.run(scenario())
    assert statuses == [429, 200]
    assert message.startswith(f"bodies of requests hold {16 * len(longest)} of ")
