"""What a kind of device has to bring: buffers that peers can open, the primitives over them, and its experts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from asap_ray.backends.place import Place
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost
from asap_ray.layout import Layout
from asap_ray.messages import Registration
from asap_ray.models.model import Model
from asap_ray.protocol import AttentionComm, MoEComm, MoEStage
from asap_ray.spec import Instance

MODULES: Final = {"cpu": "asap_ray.backends.fabric", "npu": "asap_ray.backends.ascend.ports"}
"""Where the ports of `ServeConfig.device` are; each module has `require_device` and `open_ports`."""


class Ports(Protocol):
    """One process's access to one device. Buffers and endpoints are of a native type of its own."""

    @property
    def place(self) -> Place:
        """Where attention computes."""

    @property
    def attention_comm(self) -> Callable[..., AttentionComm]:
        """Makes an endpoint of a rank into what the engine works with."""

    @property
    def moe_comm(self) -> Callable[..., MoEComm]:
        """Makes an endpoint of a MoE device into what the engine works with."""

    def create(self, name: str, num_bytes: int) -> Any:
        """A buffer of zeros that peers can open and that never moves."""

    def address(self, buffer: Any) -> dict[str, Any]:
        """Where peers find it: fields of a `Registration`."""

    def open(self, peer: Registration) -> Any:
        """A peer's buffer."""

    def mirror_bytes(self, layout: Layout) -> int:
        """What stands for the buffers of MoE devices on other hosts takes so much memory of a rank, at most."""

    def on_failure(self, call: Callable[[DeviceLost], None]) -> None:
        """Before there is an endpoint: who is told, in any thread, when what works for it has failed."""

    def close(self) -> None:
        """End what works for the endpoint; for any thread, and again."""

    def attention(self, **endpoint: Any) -> Any:
        """The attention side of the primitives, of one rank."""

    def moe(self, **endpoint: Any) -> Any:
        """The MoE side of the primitives, of one device."""

    def experts(self, config: ServeConfig, model: Model, instance: Instance, moe_device: int) -> MoEStage:
        """The experts of one device."""


def require_device(config: ServeConfig) -> None:
    """Look for the device a configuration asks for, without touching it.

    Raises:
        ConfigError: it is not there; the text says what is missing.
    """
    importlib.import_module(MODULES[config.device]).require_device(config)


def open_ports(config: ServeConfig) -> Ports:
    """The ports of the device a configuration asks for.

    Raises:
        ConfigError: it is not there; the text says what is missing.
    """
    ports: Ports = importlib.import_module(MODULES[config.device]).open_ports(config)
    return ports
