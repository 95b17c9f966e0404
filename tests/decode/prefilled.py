"""A prefill instance without scheduler and devices: one group of one rank, its cache, its leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from asap_ray.actors.decode_service import DecodeService
from asap_ray.actors.handoff import HandOff
from asap_ray.actors.waiter import TokenEvent
from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request, Sampling, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.kvcache.block_keys import block_keys, root_key
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.storage import Storage
from asap_ray.kvcache.transfer_params import RemotePrefill
from asap_ray.messages import LeaseAnswer, LeaseCall, Pages
from asap_ray.models.model import load_model
from asap_ray.spec import ParallelSpec

BLOCK = 16


def prompt(token_ids: list[int], max_tokens: int = 64, name: str = "") -> Request:
    """A whole prompt, named after its first tokens."""
    return Request(
        request_id=name or f"{token_ids[:4]}{len(token_ids)}",
        num_tokens=len(token_ids),
        arrival_s=0.0,
        token_ids=np.asarray(token_ids, dtype="<i4").tobytes(),
        sampling=Sampling(max_tokens=max_tokens),
    )


async def answer(service: DecodeService, request: Request, params: RemotePrefill | None = None) -> list[int]:
    """The tokens of one client."""
    return [event.token.token_id for event in await events_of(service, request, params)]


async def events_of(service: DecodeService, request: Request, params: RemotePrefill | None = None) -> list[TokenEvent]:
    """The events of one client."""
    return [event async for event in service.generate([request], transfer=params)]


class LocalGroups:
    """`Groups` of one group, whose model runs in this thread."""

    num_groups = 1

    def __init__(self, directory: Path, num_blocks: int = 64) -> None:
        self.num_blocks = num_blocks
        self.model = load_model(directory).undivided(SoloCollective(), torch.float32)
        self.spec = self.model.attention.cache_spec(BLOCK)
        self.memory = PageMemory.create("prefilled", num_blocks * self.spec.block_bytes)
        self.model.attention.keep_in(Storage(self.spec, num_blocks, self.memory.bytes))

    def missing(self) -> tuple[str, ...]:
        """See `Groups`."""
        return ()

    def shared_pages(self, group: int) -> tuple[Pages, ...]:
        """See `Groups`."""
        assert group == 0
        memory = self.memory
        return (
            Pages(
                pid=memory.pid,
                fd=memory.fd,
                num_bytes=memory.num_bytes,
                num_blocks=self.num_blocks,
                spec=self.spec,
            ),
        )

    def abort(self, group: int, request_ids: Sequence[str]) -> None:
        """See `Groups`; prompts have one token here."""

    async def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """See `Groups`."""
        assert group == 0
        state = drive(self.model.start(batch))
        while state is not None:
            finished = drive(self.model.step(state))
            yield finished.tokens, Stamps()
            state = finished.next_state


class Prefilled:
    """Computes prompts, and keeps them for a decode instance."""

    def __init__(self, directory: Path, num_blocks: int = 64, lease_s: float = 60.0) -> None:
        model = load_model(directory)
        groups = LocalGroups(directory, num_blocks)
        self._model, self.memory = groups.model, groups.memory
        self.cache = PrefixCache(BlockPool(num_blocks, BLOCK))
        self._root = root_key(model.fingerprint)
        self.calls: asyncio.Queue[LeaseCall] = asyncio.Queue()
        self.num_freed = 0
        alone = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
        config = ServeConfig(model=str(directory), parallel=alone, lease_s=lease_s)
        self.hand_off = HandOff(config, model.fingerprint, self._on_free)
        answered = self.hand_off.answer

        def answer(call: LeaseCall) -> LeaseAnswer:
            self.calls.put_nowait(call)
            return answered(call)

        self.hand_off._channel._answer = answer
        self._ranks = groups.shared_pages(0)
        self.hand_off.join(0, self.cache, self._ranks)

    async def __aenter__(self) -> Prefilled:
        await self.hand_off.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hand_off.close()

    def handed_off(self, request: Request) -> RemotePrefill:
        """Compute a prompt, and grant the lease."""
        keys = block_keys(request.token_ids, BLOCK, self._root)
        reservation = self.cache.reserve(request.request_id, keys, request.num_tokens, request.num_tokens)
        assert reservation, "too few blocks for this test"
        past = reservation.cached_tokens
        piece = replace(
            request,
            num_tokens=request.num_tokens - past,
            token_ids=request.token_ids[4 * past :],
            past_tokens=past,
            cached_tokens=past,
            table=reservation.table,
            sampling=Sampling(),
        )
        drive(self._model.step(drive(self._model.start(Batch((piece,))))))
        self.cache.publish(request.request_id, request.num_tokens)
        return self.hand_off.grant(0, request.request_id, request.num_tokens, past)

    def replace_group(self) -> None:
        """The group died: its successor's pages are other ones, and empty."""
        self.memory.bytes.zero_()
        self.cache = PrefixCache(BlockPool(self.cache.pool.num_blocks, BLOCK))
        self.hand_off.join(0, self.cache, self._ranks)

    def _on_free(self) -> None:
        self.num_freed += 1
