"""Peers on other hosts come, are followed by others, and what carries to them fails."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asap_ray import _native
from asap_ray.backends import fabric
from asap_ray.backends.door import Door
from asap_ray.backends.fabric import FabricPorts
from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host import HostAttention, HostMoE, instance_of
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.mirrors import AttentionEnd, MoEEnd
from asap_ray.backends.nixl_link import NixlLink, Parcel
from asap_ray.errors import DeviceLost
from asap_ray.layout import HEADER_BYTES, layout_of
from asap_ray.messages import Registration
from asap_ray.models.model import load_model
from tests.backends.test_fabric import config_of, peer_of
from tests.csrc.world import EPOCH, PATIENCE_S, World


class Line:
    """A link on which nothing travels; `poll` fails once it is cut."""

    metadata = b"mine"
    is_writing = False
    num_sent = num_received = 0

    def __init__(self, name: str = "", buffer: _native.SharedBuffer | None = None) -> None:
        del name, buffer
        self.joined: dict[str, _native.SharedBuffer] = {}
        self.left: list[str] = []
        self.is_cut = threading.Event()

    def join(self, peer: Registration, mirror: _native.SharedBuffer, _: Any) -> tuple[str, _native.SharedBuffer]:
        name = peer.link.decode()
        return name, self.joined.setdefault(name, mirror)

    def leave(self, name: str) -> None:
        self.left.append(name)

    def send(self, parcel: Parcel) -> None:
        del parcel

    def poll(self) -> Iterator[tuple[str, bytes]]:
        if self.is_cut.is_set():
            raise OSError("no route to host")
        return iter(())


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """Of all ports that are made, in order."""
    made: list[Line] = []

    def line(name: str, buffer: _native.SharedBuffer) -> Line:
        made.append(Line(name, buffer))
        return made[-1]

    monkeypatch.setattr(fabric, "NixlLink", line)
    return made


@pytest.fixture
def world() -> World:
    """One group of one rank, one MoE device."""
    return World(moe_devices=1)


@pytest.fixture
def ports() -> Iterator[FabricPorts]:
    """Of a device that is near to those on its node, `near`."""
    made = FabricPorts(is_near=lambda peer: peer.node == "near")
    yield made
    made.close()


def far(role: str, world: World, link: bytes = b"dead") -> Registration:
    """The first of its role, on another host."""
    num_bytes = {"moe": world.layout.moe_bytes, "attention": world.layout.attention_bytes}[role]
    return peer_of(role=role, index=0, num_bytes=num_bytes, link=link)


def near(peer: Registration, buffer: _native.SharedBuffer) -> Registration:
    """Its successor, on this host."""
    return dataclasses.replace(peer, node="near", link=b"", **HostPorts().address(buffer))


def join_rank(world: World, ports: FabricPorts, mirror: _native.SharedBuffer) -> _native.SharedBuffer:
    """The buffer of the rank, whose endpoint is behind these ports."""
    prefill, buffer = world.instance.prefill, ports.create("attention-0-0", world.layout.attention_bytes)
    ports.attention(
        layout=world.native_layout,
        buffer=buffer,
        moe_buffers=[mirror],
        expert_of_place=world.instance.placed.expert_of_place,
        dp_group=0,
        tp_rank=0,
        epoch=EPOCH,
        row_type=prefill.row_type,
        combine=prefill.combine,
    )
    return buffer


def test_a_near_successor_ends_the_link_to_the_dead(lines: list[Line], world: World, ports: FabricPorts) -> None:
    """Or what the dead device still says would be taken for the successor's."""
    dead = far("moe", world)
    join_rank(world, ports, ports.open(dead))

    ports.open(near(dead, world.moe_buffers[0]))

    assert lines[0].left == ["dead"]


def test_a_far_successor_ends_the_link_to_the_dead(lines: list[Line], world: World, ports: FabricPorts) -> None:
    """And has one of its own."""
    join_rank(world, ports, ports.open(far("moe", world)))

    ports.open(far("moe", world, b"heir"))

    assert (lines[0].left, [*lines[0].joined]) == (["dead"], ["dead", "heir"])


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_peer_is_joined_once(lines: list[Line], world: World, ports: FabricPorts, is_connected: bool) -> None:
    """However often one is told of it, before there is an endpoint or after: its link stays, and its mirror."""
    device = far("moe", world)
    mirror = ports.open(device)
    if is_connected:
        join_rank(world, ports, mirror)

    again = ports.open(device)
    if not is_connected:
        join_rank(world, ports, mirror)

    assert again is mirror
    assert (lines[0].left, [*lines[0].joined]) == ([], ["dead"])


@pytest.mark.parametrize("role", ["moe", "attention"])
def test_who_has_left_is_carried_for_no_more(world: World, role: str) -> None:
    """Neither parcels nor the doorbell of its mirror."""
    peer = far(role, world)
    end: Any = {
        "moe": AttentionEnd(world.native_layout, world.attention_buffers[0][0], 0, 0),
        "attention": MoEEnd(world.native_layout, world.moe_buffers[0], 0),
    }[role]
    num_bells = len(end.bells())
    end.join("dead", peer, end.mirror(_native.SharedBuffer.create_sparse("mirror", peer.num_bytes)))

    assert len(end.bells()) == num_bells + 1
    assert [end.leave(peer), end.leave(peer)] == ["dead", None]
    assert len(end.bells()) == num_bells


def test_a_device_whose_carrier_fails_is_lost(
    lines: list[Line], ports: FabricPorts, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its streams end at once with the reason, though none of them waits for a peer: its owner replaces it."""
    config, model = config_of(model=str(tiny_model)), load_model(tiny_model)
    layout = layout_of(instance_of(config, model))
    moe = HostMoE(config, model, 0, ports)
    moe.connect([peer_of(role="attention", index=0, num_bytes=layout.attention_bytes, link=b"rank")])

    with caplog.at_level(logging.ERROR):
        lines[0].is_cut.set()
        with pytest.raises(DeviceLost, match="between this device and other hosts: OSError: no route to host"):
            moe.serve()

    assert [record.message for record in caplog.records] == ["the carrier failed"]


def test_an_idle_rank_whose_carrier_fails_is_lost(lines: list[Line], ports: FabricPorts, tiny_model: Path) -> None:
    """It waits at its door, not for a device."""
    config, model = config_of(model=str(tiny_model)), load_model(tiny_model)
    layout = layout_of(instance_of(config, model))
    rank = HostAttention(config, model, 0, SoloCollective(), 1, ports)
    rank.connect([peer_of(role="moe", index=0, num_bytes=layout.moe_bytes, link=b"device")])
    waiting = Door(rank.runtime, config.prefill, lambda *_: None)

    lines[0].is_cut.set()

    with pytest.raises(DeviceLost, match="OSError: no route to host"):
        rank.serve(waiting)


@pytest.mark.parametrize(("is_followed", "bits"), [(False, 1), (True, 0)])
def test_a_dead_device_is_not_heard_beside_its_near_successor(
    world: World, ports: FabricPorts, is_followed: bool, bits: int
) -> None:
    """What it says late sets no bit of a rank, as it did while it lived."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
    grave = _native.SharedBuffer.create("moe-0", world.layout.moe_bytes)
    dead = NixlLink("moe-0", grave)
    device = dataclasses.replace(far("moe", world, dead.metadata), base=grave.address)
    buffer = join_rank(world, ports, ports.open(device))
    rank = dataclasses.replace(far("attention", world), **ports.address(buffer))
    mirror = _native.SharedBuffer.create_sparse("mirror", world.layout.attention_bytes)
    name, _ = dead.join(rank, mirror, (0, mirror.num_bytes))

    if is_followed:
        ports.open(near(device, world.moe_buffers[0]))
    dead.send(Parcel(name, bytes(1 + HEADER_BYTES)))
    wait_for_a_note(ports, dead)

    assert np.frombuffer(memoryview(buffer), np.uint64, 1, world.layout.attention_bitmaps)[0] == bits


def wait_for_a_note(ports: FabricPorts, sender: NixlLink) -> None:
    """Until the carrier has taken it, or dropped it."""
    assert ports.carrier
    deadline_s = time.monotonic() + PATIENCE_S
    while not ports.carrier.counts[1]:
        assert time.monotonic() < deadline_s, "a note is still under way"
        [*sender.poll()]
    ports.carrier.carry()  # after the round that the thread is in
