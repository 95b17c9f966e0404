"""The fourth kind of device: a host whose every peer is on another host, over NIXL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from asap_ray.backends.carrier import Carrier
from asap_ray.backends.fabric import FabricPorts
from asap_ray.messages import Registration
from asap_ray.spec import Instance, RowType
from tests.csrc.kinds import HostKind

PATIENCE_S = 20.0


class Owned:
    """A device's buffer and what it is reached by; `memoryview` and `num_bytes` are the buffer's."""

    def __init__(self, name: str, num_bytes: int) -> None:
        self.role, *place = name.split("-")
        self.index, self.tp_rank = int(place[0]), int(place[1]) if place[1:] else 0
        self.ports = FabricPorts(is_near=lambda _: False)
        self.buffer = self.ports.create(name, num_bytes)
        self.num_bytes = num_bytes

    def registration(self) -> Registration:
        return Registration(
            role=self.role,
            index=self.index,
            tp_rank=self.tp_rank,
            epoch=0,
            node="elsewhere",
            fingerprint={},
            **self.ports.address(self.buffer),
        )


class Endpoint:
    """A native endpoint that takes buffers as `Owned`."""

    def __init__(self, native: Any, ports: FabricPorts) -> None:
        self._native = native
        self._ports = ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def replace_device(self, moe_device: int, owned: Owned) -> None:
        self._native.replace_device(moe_device, self._ports.open(owned.registration()))

    def replace_group(self, dp_group: int, owned: Sequence[Owned], epoch: int) -> None:
        self._native.replace_group(dp_group, [self._ports.open(each.registration()) for each in owned], epoch)


class NixlKind(HostKind):
    """Devices that share nothing but links. They are in one process here; benchmarks and clusters have more."""

    name = "nixl"

    def __init__(self) -> None:
        self._owned: list[Owned] = []

    def create(self, name: str, num_bytes: int) -> Owned:
        self._owned.append(Owned(name, num_bytes))
        return self._owned[-1]

    def bytes_of(self, buffer: Owned) -> memoryview:
        return memoryview(buffer.buffer)

    def rank(self, instance: Instance, compute_type: RowType, **ports: Any) -> Endpoint:
        owned: Owned = ports.pop("buffer")
        mirrors = [owned.ports.open(each.registration()) for each in ports.pop("moe_buffers")]
        del compute_type
        prefill = instance.prefill
        how = {"row_type": prefill.row_type, "combine": prefill.combine}
        how |= {"expert_of_place": instance.placed.expert_of_place}
        native = owned.ports.attention(buffer=owned.buffer, moe_buffers=mirrors, **how, **ports)
        return Endpoint(native, owned.ports)

    def device(self, instance: Instance, compute_type: RowType, **ports: Any) -> Endpoint:
        owned: Owned = ports.pop("buffer")
        mirrors = [
            [owned.ports.open(each.registration()) for each in group] for group in ports.pop("attention_buffers")
        ]
        types = {"row_type": instance.prefill.row_type, "compute_type": compute_type}
        types["combine"] = instance.prefill.combine
        native = owned.ports.moe(buffer=owned.buffer, attention_buffers=mirrors, **types, **ports)
        return Endpoint(native, owned.ports)

    def settle(self) -> None:
        """Wait until every parcel that was sent has been taken, and what follows from it too."""
        deadline_s = time.monotonic() + PATIENCE_S
        carriers = [owned.ports.carrier for owned in self._owned if owned.ports.carrier]
        while not is_at_rest(carriers):
            assert time.monotonic() < deadline_s, "notes are still under way"

    def close(self) -> None:
        for owned in self._owned:
            owned.ports.close()
        self._owned.clear()


def is_at_rest(carriers: Sequence[Carrier]) -> bool:
    """Whether nothing is to be sent, under way, or being taken: their threads work on while this looks."""

    def total() -> tuple[int, ...]:
        return tuple(map(sum, zip(*(carrier.counts for carrier in carriers), strict=True)))

    def is_idle() -> bool:
        return not any(carrier.carry() for carrier in carriers)

    before = total()
    sent, received = before or (0, 0)
    return is_idle() and sent == received and is_idle() and before == total()
