"""Devices on different hosts: what travels how, what is refused, and that the engine computes the same."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from asap_ray import _native
from asap_ray.backends.door import Door
from asap_ray.backends.fabric import FabricPorts, open_ports, require_device
from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host import HostAttention, HostMoE, instance_of
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.mirrors import MoEEnd
from asap_ray.backends.node import node_name
from asap_ray.batch import Batch, Request, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.layout import layout_of
from asap_ray.messages import Registration
from asap_ray.models.model import load_model
from asap_ray.spec import ParallelSpec, PrefillSpec
from tests.csrc.world import World


def peer_of(**changes: Any) -> Registration:
    """MoE device 3 of another host, without a link."""
    fields = {"role": "moe", "index": 3, "tp_rank": 0, "pid": 1, "fd": 2, "num_bytes": 4096, "epoch": 5}
    return Registration(**fields | {"node": "far", "fingerprint": {}} | changes)


def config_of(**changes: Any) -> ServeConfig:
    """One rank and one MoE device."""
    limits = PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0)
    degrees = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
    return ServeConfig(**{"model": "m", "parallel": degrees, "prefill": limits} | changes)


def first_token(config: ServeConfig, num_tokens: int) -> Token:
    """Of a prompt of token ids in order, by an instance whose devices are threads of this process."""
    model, tokens = load_model(config.model), SimpleQueue[Token]()
    attention = HostAttention(config, model, 0, SoloCollective(), 1, open_ports(config))
    moe = HostMoE(config, model, 0, open_ports(config))
    moe.connect([attention.registration({})])
    attention.connect([moe.registration({})])
    door = Door(attention.runtime, config.prefill, lambda _batch, made, _stamps: tokens.put(made[0]))
    ids = np.arange(num_tokens, dtype=np.int32).tobytes()
    with ThreadPoolExecutor(2) as threads:
        streams = [threads.submit(attention.serve, door), threads.submit(moe.serve)]
        try:
            door.put(Batch((Request(request_id="a", num_tokens=num_tokens, arrival_s=0.0, token_ids=ids),)))
            return tokens.get(timeout=60)
        finally:
            attention.runtime.close()
            moe.runtime.close()
            for stream in streams:
                stream.result()


@pytest.mark.parametrize("num_tokens", [40, 200])
def test_the_engine_answers_the_same_over_links(tiny_model: Path, num_tokens: int) -> None:
    """Nothing in it knows; 200 tokens are a solo batch."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")

    linked, shared = (first_token(config_of(model=str(tiny_model), fabric=f), num_tokens) for f in ("nixl", "shm"))

    assert linked.token_id == shared.token_id


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fabric": "pigeon"}, "fabric='pigeon'; known fabrics: auto, shm, nixl"),
        ({"fabric": "nixl", "device": "npu"}, "fabric='nixl' with device='npu'"),
    ],
)
def test_a_fabric_that_is_not_there_is_refused(changes: dict[str, str], text: str) -> None:
    """By value, before any process starts."""
    with pytest.raises(ConfigError, match=text):
        config_of(**changes)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "nixl", None)

    with pytest.raises(ConfigError, match=r"devices on different hosts need the extra asap-ray\[nixl\]"):
        require_device(config_of(fabric="nixl"))


@pytest.mark.parametrize("fabric", ["auto", "shm"])
def test_shared_memory_needs_no_package(monkeypatch: pytest.MonkeyPatch, fabric: str) -> None:
    """Devices that are near each other work as before, wherever Ray thinks they are."""
    monkeypatch.setitem(sys.modules, "nixl", None)

    ports = open_ports(config_of(fabric=fabric))

    assert type(ports) is HostPorts
    assert "link" not in ports.address(ports.create("near", 4096))


def test_auto_asks_whether_a_peer_is_on_this_node() -> None:
    """If it is, it needs no link."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
    buffer = _native.SharedBuffer.create("near", 4096)
    address = HostPorts().address(buffer)

    ports = open_ports(config_of(fabric="auto"))

    assert type(ports) is FabricPorts
    assert ports.open(peer_of(node=node_name(), **address)).num_bytes == 4096
    with pytest.raises(ConfigError, match="moe 3 on far has no NIXL link"):
        ports.open(peer_of(**address))


def test_a_near_peer_shares_its_memory() -> None:
    """Both have the same bytes."""
    buffer = _native.SharedBuffer.create("near", 4096)

    opened = FabricPorts(is_near=lambda _: True).open(peer_of(**HostPorts().address(buffer)))
    memoryview(opened)[7] = 9

    assert memoryview(buffer)[7] == 9


def test_a_far_peer_without_a_link_is_refused() -> None:
    """Its own process has no NIXL."""
    with pytest.raises(ConfigError, match="moe 3 on far has no NIXL link"):
        FabricPorts(is_near=lambda _: False).open(peer_of())


def test_a_header_waits_for_a_dead_ones_message_to_be_dropped() -> None:
    """Rank 0 of the dead group had sent, its neighbour had not: the heir's message must not complete the old one."""
    world = World(tp=2)
    world.send(world.tokens(2), j=0)
    end = MoEEnd(world.native_layout, world.moe_buffers[0], moe_device=0)
    mirror = _native.SharedBuffer.create_sparse("mirror", world.layout.attention_bytes)
    end.join("heir", peer_of(role="attention", index=0), end.mirror(mirror))
    header = bytes(world.header(0)).replace((1).to_bytes(8, "little"), (9).to_bytes(8, "little"))

    end.take("heir", bytes([0]) + header)
    assert [*end.parcels()] == []
    assert bytes(world.header(0)) != header
    clear_word(world)
    [*end.parcels()]

    assert bytes(world.header(0)) == header


def clear_word(world: World) -> None:
    """The device has dropped what was in slot 0 of group 0."""
    memory = world.kind.bytes_of(world.moe_buffers[0])
    np.frombuffer(memory, np.uint64, 1, world.layout.moe_bitmaps)[0] = 0


@pytest.mark.parametrize(
    ("note", "text"),
    [(bytes([2]) + bytes(128), "slot=2 is not 0 or 1"), (bytes([0]) + bytes(3), "a header of 3 bytes")],
)
def test_a_note_that_does_not_fit_is_refused(note: bytes, text: str) -> None:
    """Whoever wrote it; nothing is written."""
    world = World()
    end = MoEEnd(world.native_layout, world.moe_buffers[0], moe_device=0)
    mirror = _native.SharedBuffer.create_sparse("mirror", world.layout.attention_bytes)
    end.join("peer", peer_of(role="attention", index=0), end.mirror(mirror))
    before = bytes(world.kind.bytes_of(world.moe_buffers[0]))
    size = 1 + world.layout.header_bytes

    with pytest.raises(ValueError, match=text):
        end.take("peer", note if len(note) < size else note[:size])

    assert bytes(world.kind.bytes_of(world.moe_buffers[0])) == before


def test_the_node_is_known_by_its_processes() -> None:
    """A child has the same name; a container of this host, with processes of its own, another."""
    name = [sys.executable, "-c", "from asap_ray.backends.node import node_name; print(node_name())"]
    own_processes = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*own_processes, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root")

    child, container = (subprocess.check_output([*how, *name], text=True).strip() for how in ([], own_processes))

    assert child == node_name()
    assert container != node_name()


def test_a_mirror_takes_no_memory_before_it_is_written() -> None:
    """A rank has a mirror of every device's buffer, and writes to its own region only."""
    before = resident_bytes()

    mirror = _native.SharedBuffer.create_sparse("mirror", 256 << 20)

    assert resident_bytes() - before < 16 << 20
    assert mirror.num_bytes == 256 << 20


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_mirrors_are_in_the_budget_of_a_rank(tiny_model: Path) -> None:
    """Where devices may be on other hosts, the rank's own region of each of them."""
    config, model = config_of(device_memory_bytes=1_000_000), load_model(tiny_model)
    mirrors = layout_of(instance_of(config, model)).region_bytes / 1e6

    with pytest.raises(ConfigError, match=f" - mirrors of buffers on other hosts {mirrors:.1f} = "):
        HostAttention(config, model, 0, SoloCollective(), 1, FabricPorts(is_near=lambda _: False))


def test_a_mirror_smaller_than_its_layout_is_refused() -> None:
    """Before any pointer is formed."""
    world = World()

    with pytest.raises(ValueError, match="a mirror of a MoE buffer has 4096 bytes"):
        _native.MoEMirror(world.native_layout, _native.SharedBuffer.create("small", 4096), 0, 0)
