"""The side channel of vLLM's decode instances: handshakes over ZeroMQ, reads and notifications over NIXL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from asap_ray.errors import AsapError, ConfigError, Unavailable
from asap_ray.kvcache.nixl_wire import Region, asked_rank, handshake, meta_request, read_notice
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.messages import LeaseAnswer, LeaseCall, Pages

HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.02
_PEER_S: Final = 3.0
"""To ask the decode instance for its own handshake: it waits 5 s for ours."""

_BACKEND: Final = "UCX"

_log = logging.getLogger(__name__)


def libraries(peer: str) -> tuple[Any, Any]:
    """ZeroMQ and NIXL.

    Raises:
        ConfigError: one of them is not installed.
    """
    try:
        import nixl._api  # noqa: PLC0415 - both are an extra
        import zmq.asyncio  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"nixl_peer={peer!r} needs the extra asap-ray[nixl]: {error}") from None
    return zmq, nixl._api


@dataclass(slots=True)
class _Engine:
    """The pages of one group: mapped into this process, registered with an agent for each rank."""

    memories: list[PageMemory]
    agents: list[Any]
    registered: list[Any]  # with the agent of each rank
    regions: list[Region]
    socket: Any
    port: int
    tasks: list[asyncio.Task[None]]


class NixlChannel:
    """See `Channel`. Ranks know nothing of it: it registers the memory they share."""

    def __init__(self, answer: Callable[[LeaseCall], LeaseAnswer], peer: str) -> None:
        """`peer` is the side channel of a decode instance, HOST:PORT.

        Raises:
            ConfigError: NIXL or ZeroMQ is not installed.
        """
        self._zmq, self._nixl = libraries(peer)
        self._context = self._zmq.asyncio.Context()
        self._answer = answer
        self._peer = peer
        self._engines: dict[str, _Engine] = {}

    async def open(self) -> None:
        """Nothing to do before there are pages."""

    async def close(self) -> None:
        """Answer nobody any more."""
        for engine_id in [*self._engines]:
            self.leave(engine_id)
        self._context.destroy(linger=0)

    def address(self, engine_id: str) -> tuple[str, int]:
        """Where decode instances ask for the handshake of an engine."""
        return HOST, self._engines[engine_id].port

    def join(self, engine_id: str, ranks: tuple[Pages, ...]) -> None:
        """Register the pages of an engine, and answer for it."""
        memories = [PageMemory.open(pages.pid, pages.fd, pages.num_bytes) for pages in ranks]
        options = self._nixl.nixl_agent_config(backends=[_BACKEND])
        agents = [self._nixl.nixl_agent(f"{engine_id}-{rank}", options) for rank in range(len(ranks))]
        regions, registered = [], []
        for pages, memory, agent in zip(ranks, memories, agents, strict=True):
            address = memory.address
            where = agent.get_reg_descs([(address, pages.num_bytes, 0, "")], "DRAM")
            registered.append(agent.register_memory(where, backends=[_BACKEND]))
            regions.append(
                Region(
                    engine_id=engine_id,
                    agent=agent.get_agent_metadata(),
                    address=address,
                    num_blocks=pages.num_blocks,
                    spec=pages.spec,
                )
            )
        socket = self._context.socket(self._zmq.ROUTER)
        port = socket.bind_to_random_port(f"tcp://{HOST}")
        engine = self._engines[engine_id] = _Engine(memories, agents, registered, regions, socket, port, [])
        engine.tasks += [asyncio.create_task(self._serve(engine)), asyncio.create_task(self._listen(engine_id, engine))]

    def leave(self, engine_id: str) -> None:
        """An engine is gone: nobody answers for it, and its pages cannot be read any more, not in the middle either."""
        engine = self._engines.pop(engine_id)
        for task in engine.tasks:
            task.cancel()
        engine.socket.close(linger=0)
        for agent, registered in zip(engine.agents, engine.registered, strict=True):
            agent.deregister_memory(registered, backends=[_BACKEND])

    async def _serve(self, engine: _Engine) -> None:
        """Handshakes, one after the other."""
        while True:
            parts = await engine.socket.recv_multipart()
            try:
                identity, _, message = parts
                region = engine.regions[asked_rank(message)]
                reply = handshake(await self._their_handshake(), region)
            except (AsapError, LookupError, ValueError, TypeError) as error:
                _log.error("no handshake with a decode instance: %s", error)
                continue
            await engine.socket.send_multipart([identity, b"", reply, msgpack.packb(time.perf_counter())])

    async def _their_handshake(self) -> bytes:
        socket = self._context.socket(self._zmq.REQ)
        try:
            async with asyncio.timeout(_PEER_S):
                socket.connect(f"tcp://{self._peer}")
                await socket.send(meta_request())
                payload: bytes = (await socket.recv_multipart())[0]
                return payload
        except TimeoutError:
            raise Unavailable(f"the decode instance at {self._peer} did not answer within {_PEER_S:g} s") from None
        finally:
            socket.close(linger=0)

    async def _listen(self, engine_id: str, engine: _Engine) -> None:
        """Notifications: heartbeats, and that all was read."""
        while True:
            for rank, agent in enumerate(engine.agents):
                for peer, messages in agent.get_new_notifs().items():
                    for message in messages:
                        self._tell(engine_id, f"{peer} of rank {rank}", message)
            await asyncio.sleep(_POLL_S)

    def _tell(self, engine_id: str, consumer: str, message: bytes) -> None:
        """What one rank's agent was told; all is pulled once every rank's was, by every rank of the decode side."""
        if notice := read_notice(message):
            for request_id in notice.request_ids:
                self._answer(
                    LeaseCall(
                        verb=notice.verb,
                        engine_id=engine_id,
                        request_id=request_id,
                        consumer=consumer,
                        num_consumers=notice.num_consumers * len(self._engines[engine_id].agents),
                    )
                )
