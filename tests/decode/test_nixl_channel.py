"""The side channel for vLLM, with a stand-in of its decode instance and of NIXL itself."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import msgpack
import pytest

from asap_ray.actors.handoff import HandOff
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.kvcache.nixl_wire import meta_request
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.prefix import PrefixCache
from asap_ray.kvcache.transfer_params import RemotePrefill
from asap_ray.spec import ParallelSpec
from tests.decode.prefilled import BLOCK, LocalGroups

zmq = pytest.importorskip("zmq", reason="an extra: pip install 'asap-ray[nixl]'")
zmq_asyncio = pytest.importorskip("zmq.asyncio")


class Agent:
    """NIXL without a network: notifications lie where a test puts them."""

    made: ClassVar[list[Agent]] = []

    def __init__(self, name: str, _: object) -> None:
        self.name = name
        self.notices: dict[str, list[bytes]] = {}
        self.registered: list[Any] = []
        self.made.append(self)

    def get_reg_descs(self, descriptors: Any, kind: str) -> Any:
        """As they are."""
        assert kind == "DRAM"
        return descriptors

    def register_memory(self, descriptors: Any, backends: list[str]) -> Any:
        """Remember where."""
        assert backends == ["UCX"]
        self.registered += descriptors
        return descriptors

    def deregister_memory(self, descriptors: Any, backends: list[str]) -> None:
        """Nobody can read there any more."""
        assert backends == ["UCX"]
        for each in descriptors:
            self.registered.remove(each)

    def get_agent_metadata(self) -> bytes:
        """Its name will do."""
        return self.name.encode()

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """What a test has put there since."""
        notices, self.notices = self.notices, {}
        return notices


@pytest.fixture
def _nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of agents."""
    package: Any = ModuleType("nixl")
    api: Any = ModuleType("nixl._api")
    package._api = api
    api.nixl_agent, api.nixl_agent_config = Agent, lambda backends: backends
    monkeypatch.setitem(sys.modules, "nixl", package)
    monkeypatch.setitem(sys.modules, "nixl._api", api)
    monkeypatch.setattr(Agent, "made", [])


def config_of(directory: Path, peer: str) -> ServeConfig:
    """Of a prefill instance whose decode instance listens at `peer`."""
    alone = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
    return ServeConfig(model=str(directory), parallel=alone, nixl_peer=peer)


class Decode:
    """The side channel of a vLLM, and what it asks of ours."""

    def __init__(self) -> None:
        self.context = zmq_asyncio.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        fields = {"block_size": 4 * BLOCK, "block_lens": [0, 0, 0], "engine_id": "theirs"}
        payload = msgpack.packb({"compatibility_hash": "hash", "agent_metadata_bytes": msgpack.packb(fields)})
        while True:
            identity, _, _ = await self.socket.recv_multipart()
            await self.socket.send_multipart([identity, b"", payload, msgpack.packb(0.0)])

    async def handshake(self, params: RemotePrefill) -> dict[str, Any]:
        """What the prefill instance says of its pages."""
        socket = self.context.socket(zmq.REQ)
        socket.connect(f"tcp://{params.remote_host}:{params.remote_port}")
        await socket.send(meta_request())
        payload = msgpack.unpackb((await socket.recv_multipart())[0])
        socket.close(linger=0)
        fields: dict[str, Any] = msgpack.unpackb(payload["agent_metadata_bytes"])
        return fields

    def close(self) -> None:
        """Stop."""
        self.task.cancel()
        self.socket.close(linger=0)
        self.context.destroy(linger=0)


async def until(ready: Any) -> None:
    """Give the other tasks turns until something holds."""
    async with asyncio.timeout(20):
        while not ready():
            await asyncio.sleep(0.01)


async def until_refused(host: str, port: int) -> None:
    """Until nobody listens there: ZeroMQ closes a socket in a thread of its own."""
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                return
            writer.close()
            await writer.wait_closed()


@pytest.mark.usefixtures("_nixl")
def test_ranks_that_keep_the_same_are_one_to_read(tiny_model: Path) -> None:
    """Of a group whose ranks each keep all heads, as they do latents, a decode side reads the first."""

    async def work() -> tuple[int, int]:
        groups, cache = LocalGroups(tiny_model), PrefixCache(BlockPool(64, BLOCK))
        hand_off = HandOff(config_of(tiny_model, "127.0.0.1:1"), "model", lambda: None)
        await hand_off.open()
        hand_off.join(0, cache, groups.shared_pages(0) * 2)
        assert cache.reserve("r", (), 20, 20)
        tp_size = hand_off.grant(0, "r", 20, 0).tp_size
        await hand_off.close()
        return tp_size, len(Agent.made)

    assert asyncio.run(work()) == (1, 1)


@pytest.mark.usefixtures("_nixl")
def test_a_vllm_reads_pages_and_says_so(tiny_model: Path) -> None:
    """The addresses it gets are those of the pages; its notification frees the blocks."""

    async def work() -> tuple[bytes, bytes, str, dict[str, int], int]:
        decode = Decode()
        groups, cache = LocalGroups(tiny_model), PrefixCache(BlockPool(64, BLOCK))
        hand_off = HandOff(config_of(tiny_model, f"127.0.0.1:{decode.port}"), "model", lambda: None)
        await hand_off.open()
        hand_off.join(0, cache, groups.shared_pages(0))
        reservation = cache.reserve("r", (), 20, 20)
        assert reservation
        params = hand_off.grant(0, "r", 20, 0)
        fields = await decode.handshake(params)
        (block, _), (_, base, _) = params.remote_block_ids[0], fields["kv_caches_base_addr"]
        groups.memory.bytes.random_()
        read = ctypes.string_at(base + block * fields["block_strides"][1], fields["block_lens"][1])
        written = groups.memory.bytes.view(3, 64, fields["block_lens"][1])[1, block].numpy().tobytes()
        Agent.made[0].notices = {"vllm rank 0": [b"HB:r,gone", b"r:2", b"r:2"]}
        await until(lambda: not Agent.made[0].notices)
        assert hand_off.totals()["open"] == 1  # the other rank has yet to say so
        Agent.made[0].notices = {"vllm rank 1": [b"r:2"]}
        await until(lambda: not hand_off.totals()["open"])
        totals, num_held = hand_off.totals(), cache.num_held
        await hand_off.close()
        decode.close()
        return read, written, fields["engine_id"] == params.remote_engine_id and params.transfer_mode, totals, num_held

    read, written, mode, totals, num_held = asyncio.run(work())

    assert read == written
    assert (mode, totals["pulled"], num_held) == ("pull", 1, 0)


@pytest.mark.usefixtures("_nixl")
def test_a_vllm_finds_the_blocks_of_a_dead_group_gone(tiny_model: Path) -> None:
    """Nothing of it can be read, and nobody answers its handshake or hears its notifications."""

    async def work() -> tuple[list[Any], bool, dict[str, int]]:
        decode = Decode()
        groups, cache = LocalGroups(tiny_model), PrefixCache(BlockPool(64, BLOCK))
        hand_off = HandOff(config_of(tiny_model, f"127.0.0.1:{decode.port}"), "model", lambda: None)
        await hand_off.open()
        hand_off.join(0, cache, groups.shared_pages(0))
        assert cache.reserve("r", (), 20, 20)
        params = hand_off.grant(0, "r", 20, 0)
        await decode.handshake(params)
        hand_off.lose(0)
        await until_refused(params.remote_host, params.remote_port)
        Agent.made[0].notices = {"vllm rank 0": [b"r:1"]}
        totals = hand_off.totals()
        await hand_off.close()
        decode.close()
        return Agent.made[0].registered, bool(Agent.made[0].notices), totals

    registered, is_deaf, totals = asyncio.run(work())

    assert (registered, is_deaf) == ([], True)
    assert (totals["lost"], totals["pulled"], totals["open"]) == (1, 0, 0)


def test_without_nixl_the_setting_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "nixl", None)

    with pytest.raises(ConfigError, match=r"nixl_peer='127.0.0.1:1' needs the extra asap-ray\[nixl\]"):
        HandOff(config_of(tiny_model, "127.0.0.1:1"), "model", lambda: None)
