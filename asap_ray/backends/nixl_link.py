"""One-sided writes into buffers on other hosts, over NIXL: by default UCX, which finds TCP, RDMA or shared memory."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterator
from typing import Any, Final

from asap_ray import _native
from asap_ray.errors import ConfigError, DeviceLost
from asap_ray.messages import Registration

_BACKENDS: Final = ["UCX"]

_log = logging.getLogger(__name__)


def require_nixl() -> Any:
    """NIXL's agents.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import nixl._api  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"devices on different hosts need the extra asap-ray[nixl]: {error}") from None
    logging.getLogger("nixl").setLevel(logging.WARNING)
    return nixl._api


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """Ranges (offset, num_bytes) of a mirror for the same places of the peer's buffer, then a note for its process."""

    to: str
    note: bytes
    ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Peer:
    who: str
    mirror: _native.SharedBuffer
    base: int  # address of the peer's buffer in the peer's process
    registered: Any
    writes: list[Any] = dataclasses.field(default_factory=list)  # in flight
    is_broken: bool = False
    has_left: bool = False


class NixlLink:
    """This process's end of all links. One thread at a time."""

    def __init__(self, name: str, buffer: _native.SharedBuffer) -> None:
        """Peers may write to `buffer`; `name` is for their logs.

        No progress thread: it competes with the devices for their cores, and whoever polls makes progress.

        Raises:
            ConfigError: NIXL is not installed.
        """
        nixl = require_nixl()
        options = nixl.nixl_agent_config(backends=_BACKENDS, enable_prog_thread=False)
        self._agent = nixl.nixl_agent(f"{name}-{uuid.uuid4().hex}", options)
        self._register(buffer, (0, buffer.num_bytes))
        self.metadata: bytes = self._agent.get_agent_metadata()
        self._peers: dict[str, _Peer] = {}
        self.num_sent = 0
        self.num_received = 0

    def join(
        self, peer: Registration, mirror: _native.SharedBuffer, span: tuple[int, int]
    ) -> tuple[str, _native.SharedBuffer]:
        """Link to a peer, whose buffer `mirror` has the layout of.

        `span` is the offset and size of what parcels to it lie in: registered memory may be pinned.

        Returns:
            The name by which the peer is known here, and its mirror: if it has joined before, that of then.

        Raises:
            DeviceLost: it has left.
        """
        name: str = self._agent.add_remote_agent(peer.link).decode()
        who = f"{peer.role} {peer.index} rank {peer.tp_rank} on {peer.node}"
        if name not in self._peers:
            self._peers[name] = _Peer(who, mirror, peer.base, self._register(mirror, span))
        if self._peers[name].has_left:
            raise DeviceLost(f"{who} is dead: another has taken its place")
        return name, self._peers[name].mirror

    def leave(self, name: str) -> None:
        """A peer is dead: nothing goes to it any more, nor comes from it."""
        self._peers[name].has_left = True

    @property
    def is_writing(self) -> bool:
        """Whether some write is in flight."""
        return any(peer.writes for peer in self._peers.values())

    def send(self, parcel: Parcel) -> None:
        """Start a parcel on its way; never waits. One to a broken link is dropped: whoever waits has a deadline."""
        peer = self._peers[parcel.to]
        if peer.is_broken or peer.has_left:
            return
        try:
            if parcel.ranges:
                self._write(peer, parcel)
            else:
                self._agent.send_notif(parcel.to, parcel.note)
            self.num_sent += 1
        except Exception as error:  # NIXL's have no class in common
            self._give_up(peer, error)

    def poll(self) -> Iterator[tuple[str, bytes]]:
        """Make progress; the notes that have come, each after all bytes of its parcel, with the sender's name."""
        for name, peer in [*self._peers.items()]:
            self._end_writes(peer)
            if peer.has_left and not peer.writes:
                self._forget(name)
        for name, notes in self._agent.get_new_notifs(backends=_BACKENDS).items():
            self.num_received += len(notes)
            if name in self._peers and not self._peers[name].has_left:
                yield from ((name, note) for note in notes)

    def _register(self, buffer: _native.SharedBuffer, span: tuple[int, int]) -> Any:
        offset, num_bytes = span
        where = [(buffer.address + offset, num_bytes, 0, "")]
        return self._agent.register_memory(self._agent.get_reg_descs(where, "DRAM"), backends=_BACKENDS)

    def _write(self, peer: _Peer, parcel: Parcel) -> None:
        ours = [(peer.mirror.address + offset, num_bytes, 0) for offset, num_bytes in parcel.ranges]
        theirs = [(peer.base + offset, num_bytes, 0) for offset, num_bytes in parcel.ranges]
        write = self._agent.initialize_xfer(
            "WRITE",
            self._agent.get_xfer_descs(ours, "DRAM"),
            self._agent.get_xfer_descs(theirs, "DRAM"),
            parcel.to,
            parcel.note,
            backends=_BACKENDS,
        )
        if _is_under_way(self._agent.transfer(write)):
            peer.writes.append(write)

    def _end_writes(self, peer: _Peer) -> None:
        try:
            peer.writes = [write for write in peer.writes if _is_under_way(self._agent.check_xfer_state(write))]
        except Exception as error:  # NIXL's have no class in common
            peer.writes = []
            self._give_up(peer, error)

    def _give_up(self, peer: _Peer, error: Exception) -> None:
        if not (peer.has_left or peer.is_broken):
            _log.error("the link to %s is broken: %s %s", peer.who, type(error).__name__, error)
        peer.is_broken = True

    def _forget(self, name: str) -> None:
        peer = self._peers.pop(name)
        try:
            self._agent.deregister_memory(peer.registered, backends=_BACKENDS)
            self._agent.remove_remote_agent(name)
        except Exception as error:  # NIXL's have no class in common; what it keeps is memory
            _log.warning("NIXL keeps what it had of %s: %s", peer.who, error)


def _is_under_way(state: str) -> bool:
    """Whether NIXL still writes; an error if it has failed to."""
    if state == "ERR":
        raise ConnectionError("a write failed")
    return state == "PROC"
