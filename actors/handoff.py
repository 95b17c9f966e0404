"""What a prefill instance keeps for decode instances: the blocks of prompts that have their first token."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from asap_ray.actors.nixl_channel import NixlChannel
from asap_ray.actors.side_channel import SideChannel
from asap_ray.batch import Request
from asap_ray.config import ServeConfig
from asap_ray.errors import RequestError, Unavailable
from asap_ray.kvcache.handoff import LeaseCounts, Leases
from asap_ray.kvcache.kinds import CacheSpec
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.transfer_params import PARAM, RemotePrefill, Transfer
from asap_ray.messages import LeaseAnswer, LeaseCall, Pages


class Channel(Protocol):
    """Where decode instances ask after the blocks of engines: ours, or vLLM's."""

    async def open(self) -> None:
        """Before the first engine joins."""

    async def close(self) -> None:
        """Answer nobody any more."""

    def address(self, engine_id: str) -> tuple[str, int]:
        """Host and port, for `kv_transfer_params`."""

    def join(self, engine_id: str, ranks: tuple[Pages, ...]) -> None:
        """The pages of an engine can be read from now on."""

    def leave(self, engine_id: str) -> None:
        """They are gone."""


@dataclass(slots=True)
class _Engine:
    """The cache of one group, under a name that no other cache has: not even its successor after a loss."""

    cache: PrefixCache
    leases: Leases
    ranks: tuple[Pages, ...]
    num_tokens: dict[str, int] = field(default_factory=dict)  # by request, of those with a lease
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))


class HandOff:
    """Leases of every group, and the side channel on which decode instances ask after them. One asyncio loop."""

    def __init__(self, config: ServeConfig, model: str, on_free: Callable[[], None]) -> None:
        """`model` is its fingerprint; `on_free` is called when blocks were let go of."""
        self._lease_s = config.lease_s
        self._model = model
        self._on_free = on_free
        self._engines: dict[int, _Engine] = {}  # by group
        peer = config.nixl_peer
        self._channel: Channel = NixlChannel(self.answer, peer) if peer else SideChannel(self.answer)
        self.counts = LeaseCounts()

    async def open(self) -> None:
        """Listen on the side channel."""
        await self._channel.open()

    async def close(self) -> None:
        """Listen no longer; who has yet to pull cannot."""
        await self._channel.close()

    def join(self, group: int, cache: PrefixCache, ranks: tuple[Pages, ...]) -> None:
        """The cache of a group that starts, or that takes the place of a lost one."""
        self.lose(group)
        ranks = _distinct(ranks)
        engine = self._engines[group] = _Engine(cache, Leases(cache, self._lease_s, self.counts), ranks)
        self._channel.join(engine.engine_id, ranks)

    def lose(self, group: int) -> None:
        """A group was lost, and its cache with all leases."""
        if lost := self._engines.pop(group, None):
            lost.leases.lose()
            self._channel.leave(lost.engine_id)

    def check(self, requests: Sequence[Request], transfer: Transfer) -> bool:
        """Whether a decode instance is to go on; True, or it is refused.

        Raises:
            Unavailable: no group has a cache, or none any more.
            RequestError: this is not an instance that pulls, its pages are on dies, or it is not asked for one token of
                one prompt.
        """
        if isinstance(transfer, RemotePrefill):
            raise RequestError("do_remote_prefill=true: this instance computes prompts; it pulls none", PARAM)
        if not self._engines:
            raise Unavailable("not ready: no group keeps prompts")
        if not all(engine.ranks for engine in self._engines.values()):
            raise RequestError("do_remote_decode=true: KV pages are on dies here, where nobody pulls them", PARAM)
        for request in requests:
            if request.sampling.max_tokens != 1:
                raise RequestError(
                    f"max_tokens={request.sampling.max_tokens} with do_remote_decode; it must be 1", "max_tokens"
                )
        return True

    def totals(self) -> dict[str, int]:
        """Leases of all groups since the start, by how they ended, and those that are open."""
        return asdict(self.counts) | {"open": sum(engine.leases.num_open for engine in self._engines.values())}

    def grant(self, group: int, request_id: str, num_tokens: int, cached_tokens: int) -> RemotePrefill:
        """Keep what a request holds on `group` beyond its end; what the decode instance is to be told of it."""
        engine = self._engines[group]
        engine.leases.grant(request_id, time.monotonic())
        engine.num_tokens[request_id] = num_tokens
        host, port = self._channel.address(engine.engine_id)
        return RemotePrefill(
            remote_block_ids=(engine.cache.pool.table(request_id),),
            remote_engine_id=engine.engine_id,
            remote_request_id=request_id,
            remote_host=host,
            remote_port=port,
            tp_size=len(engine.ranks),
            remote_num_tokens=num_tokens,
            remote_prefill_cached_tokens=cached_tokens,
        )

    def expire(self, now: float) -> None:
        """Let go of the blocks of every lease that has ended."""
        for engine in self._engines.values():
            for request_id in engine.leases.expire(now):
                del engine.num_tokens[request_id]

    def wake_at(self) -> float | None:
        """When the next lease ends if nobody asks for it; None if none is open."""
        return min((at for e in self._engines.values() if (at := e.leases.wake_at()) is not None), default=None)

    def answer(self, call: LeaseCall) -> LeaseAnswer:
        """What a decode instance is told. A lease that has ended, or never was, is no error: a peer cannot know."""
        engine = next((e for e in self._engines.values() if e.engine_id == call.engine_id), None)
        if engine is None or call.request_id not in engine.num_tokens:
            return LeaseAnswer(lease_s=0.0)
        leases, name = engine.leases, call.request_id
        if call.verb in ("pulled", "abort"):
            is_over = (
                leases.pulled(name, call.consumer, call.num_consumers) if call.verb == "pulled" else leases.abort(name)
            )
            if is_over:
                del engine.num_tokens[name]
                self._on_free()
            return LeaseAnswer(lease_s=self._lease_s)
        leases.heartbeat(name, time.monotonic())
        if call.verb == "heartbeat":
            return LeaseAnswer(lease_s=self._lease_s)
        return LeaseAnswer(
            lease_s=self._lease_s,
            table=engine.cache.pool.table(name),
            num_tokens=engine.num_tokens[name],
            ranks=engine.ranks,
            model=self._model,
        )


def _distinct(ranks: tuple[Pages, ...]) -> tuple[Pages, ...]:
    """One of those that keep the same heads: latents are whole on every rank, and a decode side reads them once."""
    first: dict[CacheSpec, Pages] = {}
    for pages in ranks:
        first.setdefault(pages.spec, pages)
    return tuple(first.values())
