"""The ports of a host whose peers may be on other hosts: shared memory where there is some, NIXL elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asap_ray import _native
from asap_ray.backends.carrier import Carrier
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.mirrors import AttentionEnd, End, MoEEnd
from asap_ray.backends.nixl_link import NixlLink, require_nixl
from asap_ray.backends.node import node_name
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, DeviceLost
from asap_ray.layout import Layout
from asap_ray.messages import Registration


def require_device(config: ServeConfig) -> None:
    """A host is always there.

    Raises:
        ConfigError: the configuration wants NIXL, which is not installed.
    """
    if config.fabric == "nixl":
        require_nixl()


def open_ports(config: ServeConfig) -> HostPorts:
    """The ports of this host, with a link where the configuration may need one and NIXL is there.

    Raises:
        ConfigError: it needs one, and NIXL is not.
    """
    if config.fabric == "nixl":
        require_nixl()
        return FabricPorts(is_near=lambda _: False)
    if config.fabric == "auto" and _has_nixl():
        return FabricPorts(is_near=lambda peer: peer.node == node_name())
    return HostPorts()


def _has_nixl() -> bool:
    try:
        require_nixl()
    except ConfigError:
        return False
    return True


class FabricPorts(HostPorts):
    """See `Ports`. One buffer and one endpoint: those of one device."""

    def __init__(self, is_near: Callable[[Registration], bool]) -> None:
        """`is_near` says of a peer whether it shares memory with this process."""
        self._is_near = is_near
        self._joined: dict[bytes, tuple[Registration, _native.SharedBuffer]] = {}  # by link, before a carrier is there
        self._on_failure: Callable[[DeviceLost], None] = lambda _: None
        self.carrier: Carrier | None = None  # once there is an endpoint

    def on_failure(self, call: Callable[[DeviceLost], None]) -> None:
        """See `Ports`."""
        self._on_failure = call

    def mirror_bytes(self, layout: Layout) -> int:
        """See `Ports`; any device may be far, and a rank writes to its own region of its buffer."""
        return layout.moe_devices * layout.region_bytes

    def create(self, name: str, num_bytes: int) -> _native.SharedBuffer:
        """See `Ports`; peers on other hosts may write to it too."""
        buffer: _native.SharedBuffer = super().create(name, num_bytes)
        self._link = NixlLink(name, buffer)
        return buffer

    def address(self, buffer: Any) -> dict[str, Any]:
        """See `Ports`."""
        return super().address(buffer) | {"link": self._link.metadata, "base": buffer.address}

    def open(self, peer: Registration) -> _native.SharedBuffer:
        """See `Ports`; a mirror of the buffer of a peer on another host.

        Raises:
            ConfigError: that peer has no link.
        """
        if self._is_near(peer):
            near: _native.SharedBuffer = super().open(peer)
            if self.carrier:
                self.carrier.forget(peer)
            return near
        if not peer.link:
            raise ConfigError(f"{peer.role} {peer.index} on {peer.node} has no NIXL link")
        mirror = _native.SharedBuffer.create_sparse(f"mirror-{peer.role}-{peer.index}-{peer.tp_rank}", peer.num_bytes)
        if self.carrier:
            return self.carrier.join(peer, mirror)
        return self._joined.setdefault(peer.link, (peer, mirror))[1]

    def attention(self, **endpoint: Any) -> _native.AttentionComm:
        """See `Ports`."""
        native: _native.AttentionComm = super().attention(**endpoint)
        who = {key: endpoint[key] for key in ("dp_group", "tp_rank")}
        self._carry_for(AttentionEnd(endpoint["layout"], endpoint["buffer"], **who))
        return native

    def moe(self, **endpoint: Any) -> _native.MoEComm:
        """See `Ports`."""
        native: _native.MoEComm = super().moe(**endpoint)
        self._carry_for(MoEEnd(endpoint["layout"], endpoint["buffer"], endpoint["moe_device"]))
        return native

    def close(self) -> None:
        """See `Ports`."""
        if self.carrier:
            self.carrier.close()

    def _carry_for(self, end: End) -> None:
        self.carrier = Carrier(self._link, end, self._on_failure)
        for peer, mirror in self._joined.values():
            self.carrier.join(peer, mirror)
        self._joined.clear()
