"""What crosses between hosts, on each side: parcels out of mirrors, notes into inboxes (csrc/include/asap/mirror.hpp).

A note starts with the slot. From a rank: the header of its message. From a MoE device: the header of a reply, or
nothing more, which is the credit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from asap_ray import _native
from asap_ray.backends.nixl_link import Parcel
from asap_ray.messages import Registration
from asap_ray.spec import NUM_SLOTS

Bell = tuple[_native.SharedBuffer, int]


class Mirror(Protocol):
    """What a device writes to instead of a peer's buffer."""

    @property
    def bell(self) -> Bell:
        """Rings when there is something to take."""

    @property
    def span(self) -> tuple[int, int]:
        """Offset and size of what all ranges lie in."""

    def take(self, slot: int) -> tuple[bytes, list[tuple[int, int]]] | None:
        """What is in the slot, once: header and ranges."""


class End(Protocol):
    """One device, to whoever carries for it."""

    def mirror(self, buffer: _native.SharedBuffer) -> Any:
        """Memory that has the layout of a peer's buffer, as a `Mirror`."""

    def join(self, name: str, peer: Registration, mirror: Any) -> None:
        """A peer by its name on the link, and its mirror; whoever was in its place has left."""

    def leave(self, successor: Registration) -> str | None:
        """Whoever was in the successor's place is dead; the name of it, if there was one."""

    def take(self, name: str, note: bytes) -> None:
        """What a peer says."""

    def parcels(self) -> Iterator[Parcel]:
        """What is to be carried now."""

    def bells(self) -> list[Bell]:
        """Doorbells that ring when there may be more to carry."""


class AttentionEnd:
    """Rank j of group i."""

    def __init__(self, layout: _native.Layout, buffer: _native.SharedBuffer, dp_group: int, tp_rank: int) -> None:
        self._layout = layout
        self._inbox = _native.AttentionInbox(layout, buffer)
        self._rank = (dp_group, tp_rank)
        self._names: dict[int, str] = {}  # by e
        self._devices: dict[str, int] = {}
        self._mirrors: dict[str, _native.MoEMirror] = {}

    def mirror(self, buffer: _native.SharedBuffer) -> _native.MoEMirror:
        """See `End`."""
        return _native.MoEMirror(self._layout, buffer, *self._rank)

    def join(self, name: str, peer: Registration, mirror: _native.MoEMirror) -> None:
        """See `End`."""
        self._names[peer.index] = name
        self._devices[name] = peer.index
        self._mirrors[name] = mirror

    def leave(self, successor: Registration) -> str | None:
        """See `End`."""
        dead = self._names.pop(successor.index, None)
        if dead:
            del self._mirrors[dead], self._devices[dead]
        return dead

    def take(self, name: str, note: bytes) -> None:
        """See `End`."""
        slot, header = note[0], note[1:]
        if header:
            self._inbox.put(slot, self._devices[name], header)
        else:
            self._mirrors[name].credit(slot)

    def parcels(self) -> Iterator[Parcel]:
        """See `End`."""
        for name, mirror in self._mirrors.items():
            yield from _messages(name, mirror)

    def bells(self) -> list[Bell]:
        """See `End`."""
        return [mirror.bell for mirror in self._mirrors.values()]


class _RemoteRank:
    """A rank on another host, as a MoE device's process sees it."""

    def __init__(self, place: tuple[int, int], mirror: _native.AttentionMirror) -> None:
        self.place = place
        self.mirror = mirror
        self.held: dict[int, bytes] = {}  # by slot: headers that wait for a dead one's message to be dropped
        self.unread: set[int] = set()  # slots whose credit is owed


class MoEEnd:
    """MoE device e."""

    def __init__(self, layout: _native.Layout, buffer: _native.SharedBuffer, moe_device: int) -> None:
        self._layout = layout
        self._inbox = _native.MoEInbox(layout, buffer)
        self._moe_device = moe_device
        self._names: dict[tuple[int, int], str] = {}  # by (i, j)
        self._ranks: dict[str, _RemoteRank] = {}

    def mirror(self, buffer: _native.SharedBuffer) -> _native.AttentionMirror:
        """See `End`."""
        return _native.AttentionMirror(self._layout, buffer, self._moe_device)

    def join(self, name: str, peer: Registration, mirror: _native.AttentionMirror) -> None:
        """See `End`."""
        place = (peer.index, peer.tp_rank)
        self._names[place] = name
        self._ranks[name] = _RemoteRank(place, mirror)

    def leave(self, successor: Registration) -> str | None:
        """See `End`."""
        dead = self._names.pop((successor.index, successor.tp_rank), None)
        if dead:
            del self._ranks[dead]
        return dead

    def take(self, name: str, note: bytes) -> None:
        """See `End`."""
        rank, slot, header = self._ranks[name], note[0], note[1:]
        if self._inbox.put(*rank.place, slot, header):
            rank.unread.add(slot)
        else:
            rank.held[slot] = header

    def parcels(self) -> Iterator[Parcel]:
        """See `End`."""
        for name, rank in self._ranks.items():
            yield from _messages(name, rank.mirror)
            for slot in [slot for slot in rank.unread if self._inbox.is_read(*rank.place, slot)]:
                rank.unread.remove(slot)
                yield Parcel(name, bytes([slot]))
            for slot in [slot for slot, header in rank.held.items() if self._inbox.put(*rank.place, slot, header)]:
                del rank.held[slot]
                rank.unread.add(slot)

    def bells(self) -> list[Bell]:
        """See `End`."""
        return [self._inbox.bell, *(rank.mirror.bell for rank in self._ranks.values())]


def _messages(name: str, mirror: Mirror) -> Iterator[Parcel]:
    for slot in range(NUM_SLOTS):
        if taken := mirror.take(slot):
            header, ranges = taken
            yield Parcel(name, bytes([slot]) + header, ranges)
