"""The ports of a host: shared memory, the primitives over it, experts on its CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asap_ray import _native
from asap_ray.backends.host_comm import DTYPES, HostAttentionComm, HostMoEComm
from asap_ray.backends.place import HostPlace, Place
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from asap_ray.layout import Layout
from asap_ray.messages import Registration
from asap_ray.models.model import Model
from asap_ray.protocol import MoEStage
from asap_ray.spec import ExpertType, Instance


class HostPorts:
    """Buffers of this machine's shared memory, and the primitives over them in native code (`Ports`)."""

    place: Place = HostPlace()
    attention_comm = HostAttentionComm
    moe_comm = HostMoEComm

    def create(self, name: str, num_bytes: int) -> Any:
        """See `Ports`."""
        return _native.SharedBuffer.create(name, num_bytes)

    def address(self, buffer: Any) -> dict[str, Any]:
        """See `Ports`."""
        return {"pid": buffer.pid, "fd": buffer.fd, "num_bytes": buffer.num_bytes}

    def open(self, peer: Registration) -> Any:
        """See `Ports`."""
        return _native.SharedBuffer.open(peer.pid, peer.fd, peer.num_bytes)

    def mirror_bytes(self, layout: Layout) -> int:
        """See `Ports`; peers' own buffers are mapped."""
        del layout
        return 0

    def on_failure(self, call: Callable[[DeviceLost], None]) -> None:
        """See `Ports`; shared memory works by itself."""

    def close(self) -> None:
        """See `Ports`; shared memory works by itself."""

    def attention(self, **endpoint: Any) -> Any:
        """See `Ports`."""
        return _native.AttentionComm(**endpoint)

    def moe(self, **endpoint: Any) -> Any:
        """See `Ports`."""
        return _native.MoEComm(**endpoint)

    def experts(self, config: ServeConfig, model: Model, instance: Instance, moe_device: int) -> MoEStage:
        """See `Ports`."""
        mine = instance.experts_of(moe_device)
        if config.expert_type is ExpertType.INT8:
            return model.int8_expert_stage(mine)
        return model.expert_stage(mine, DTYPES[config.compute_type])
