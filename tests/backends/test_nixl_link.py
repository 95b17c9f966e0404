"""One end of links over NIXL: who is at the other, who has gone, and what breaks."""

from __future__ import annotations

import logging

import pytest

from asap_ray import _native
from asap_ray.backends.nixl_link import NixlLink, Parcel
from asap_ray.errors import DeviceLost
from asap_ray.messages import Registration
from tests.backends.test_fabric import peer_of


def linked_pair() -> tuple[NixlLink, NixlLink, Registration, list[_native.SharedBuffer]]:
    """Two ends over NIXL, the second's address, and their buffers."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
    buffers = [_native.SharedBuffer.create(name, 4096) for name in ("mine", "theirs")]
    mine, theirs = (NixlLink(name, buffer) for name, buffer in zip(("mine", "theirs"), buffers, strict=True))
    return mine, theirs, peer_of(link=theirs.metadata, base=buffers[1].address), buffers


def test_a_link_is_made_once() -> None:
    """The peer has one name, and the mirror of the first time."""
    mine, _theirs, peer, _buffers = linked_pair()
    first, second = (_native.SharedBuffer.create_sparse("mirror", 4096) for _ in range(2))

    joined = mine.join(peer, first, (0, 4096))

    assert mine.join(peer, second, (0, 4096)) == joined
    assert joined[1] is first


def test_who_has_left_does_not_come_back() -> None:
    """It is dead: another has its place."""
    mine, _theirs, peer, _buffers = linked_pair()
    name, mirror = mine.join(peer, _native.SharedBuffer.create_sparse("mirror", 4096), (0, 4096))
    mine.leave(name)

    with pytest.raises(DeviceLost, match="moe 3 rank 0 on far is dead"):
        mine.join(peer, mirror, (0, 4096))


def test_a_broken_link_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Parcels to it are dropped: whoever waits for an answer has a deadline."""
    mine, _theirs, peer, _buffers = linked_pair()
    name, _ = mine.join(peer, _native.SharedBuffer.create_sparse("mirror", 4096), (0, 4096))
    outside = Parcel(name, b"note", [(1 << 30, 8)])

    with caplog.at_level(logging.ERROR):
        mine.send(outside)
        mine.send(outside)

    assert [record.message[:43] for record in caplog.records] == ["the link to moe 3 rank 0 on far is broken: "]


@pytest.mark.parametrize("call", ["transfer", "check_xfer_state"])
def test_a_write_that_fails_breaks_the_link(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At its start or later; NIXL says so in a word."""
    mine, _theirs, peer, _buffers = linked_pair()
    name, _ = mine.join(peer, _native.SharedBuffer.create_sparse("mirror", 4096), (0, 4096))
    answers = {"transfer": "PROC"} | {call: "ERR"}
    for each, state in answers.items():
        monkeypatch.setattr(mine._agent, each, lambda _, state=state: state)

    with caplog.at_level(logging.ERROR):
        mine.send(Parcel(name, b"note", [(0, 8)]))
        [*mine.poll()]
        mine.send(Parcel(name, b"note", [(0, 8)]))

    assert [record.message for record in caplog.records] == [
        "the link to moe 3 rank 0 on far is broken: ConnectionError a write failed"
    ]
    assert not mine.is_writing
