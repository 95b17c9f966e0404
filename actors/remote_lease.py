"""The decode side of a lease: what a prefill instance is told while its blocks wait to be pulled."""

from __future__ import annotations

import asyncio
from typing import Final

from asap_ray.actors.side_channel import ask
from asap_ray.errors import AsapError, Unavailable
from asap_ray.kvcache.transfer_params import RemotePrefill
from asap_ray.messages import LeaseAnswer, LeaseCall

_BEATS: Final = 6
"""Heartbeats in the time of a lease, as vLLM has it: some may be late."""


class RemoteLease:
    """`async with` it: heartbeats as long as the block runs, and an abort at its end unless all was pulled."""

    def __init__(self, params: RemotePrefill) -> None:
        self._params = params
        self._is_over = False
        self._beats: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RemoteLease:
        self._beats = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._beats:
            self._beats.cancel()
        if not self._is_over:
            try:
                await self._ask("abort")
            except AsapError:  # whoever cannot be told has no blocks to keep, or lets go of them in time
                return

    async def read(self) -> LeaseAnswer:
        """Where the blocks are.

        Raises:
            Unavailable, PeerTimeout: nobody keeps them any more, or says so.
        """
        found = await self._ask("read")
        if tuple(found.table) != sum(self._params.remote_block_ids, ()):
            raise Unavailable(f"{self._text}: its blocks are not those of kv_transfer_params")
        return found

    async def pulled(self) -> None:
        """All of it is here, and the lease is over.

        Raises:
            Unavailable, PeerTimeout: it was over before, so that others may have written what was read.
        """
        self._is_over = True
        await self._ask("pulled")

    @property
    def _text(self) -> str:
        return f"request {self._params.remote_request_id!r} of engine {self._params.remote_engine_id!r}"

    async def _ask(self, verb: str) -> LeaseAnswer:
        params = self._params
        call = LeaseCall(verb=verb, engine_id=params.remote_engine_id, request_id=params.remote_request_id)
        answer = await ask(params.remote_host, params.remote_port, call)
        if not answer.lease_s and verb != "abort":
            raise Unavailable(f"{self._text} has no lease, or none any more")
        return answer

    async def _beat(self) -> None:
        try:
            while True:
                answer = await self._ask("heartbeat")
                await asyncio.sleep(answer.lease_s / _BEATS)
        except AsapError:  # `read` will say so
            return
