"""Bodies of requests, from their first byte until their prompts can be queued: all of them together have a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException, Request

from asap_ray.errors import Overloaded

_BYTES_PER_TOKEN: Final = 16
"""An id in JSON has at most 11 digits, a comma and a space; a token of text is shorter on average."""

_BODY_SLACK: Final = 1 << 16

_BODY_S: Final = 60.0
"""A client that sends a byte a second does not hold its connection for longer."""

LONGEST_BODIES: Final = 16
"""Room for so many of the longest ones, or for many thousands of usual ones."""

_RETRY_S: Final = 1.0
"""Bodies take as long as their clients' networks do: nobody knows better."""


class Bodies:
    """Reads bodies of requests; a stalled client holds what it has sent, so what all hold is bounded."""

    def __init__(self, max_queued_tokens: int) -> None:
        """A body may have what a full queue could take."""
        self._max_bytes = _BYTES_PER_TOKEN * max_queued_tokens + _BODY_SLACK
        self._held_bytes = 0

    @asynccontextmanager
    async def read(self, http: Request) -> AsyncIterator[bytearray]:
        """A whole body, which is gone at the end of the block.

        Raises:
            Overloaded: others hold too much of the room.
            HTTPException: it is longer than any the queue could take (413), or does not end (408).
        """
        body = bytearray()
        try:
            await self._fill(body, http)
            yield body
        finally:
            self._held_bytes -= len(body)
            body.clear()

    async def _fill(self, body: bytearray, http: Request) -> None:
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in http.stream():
                    self._take(len(body), len(part))
                    body += part
        except TimeoutError:
            reason = f"{len(body)} bytes of the body came within {_BODY_S:g} s, and not all of it"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, reason) from None

    def _take(self, num_before: int, num_bytes: int) -> None:
        """Room for so many bytes more of a body."""
        if num_before + num_bytes > self._max_bytes:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {self._max_bytes} bytes")
        room_bytes = LONGEST_BODIES * self._max_bytes
        if self._held_bytes + num_bytes > room_bytes:
            raise Overloaded(
                f"bodies of requests hold {self._held_bytes} of {room_bytes} bytes; there is no room for "
                f"{num_bytes} more",
                retry_after_s=_RETRY_S,
            )
        self._held_bytes += num_bytes
