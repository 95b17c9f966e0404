"""The kinds of device that the contract of the primitives is tested on: this host, and Ascend kernels on their twin."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from asap_ray import _native
from asap_ray.spec import Instance, RowType
from tests.ascend.twin import fake_runtime, kernels_folder


class Kind(Protocol):
    """How buffers and ports of one kind of device are made."""

    name: str

    def create(self, name: str, num_bytes: int) -> Any: ...
    def bytes_of(self, buffer: Any) -> memoryview: ...
    def peer(self, buffer: Any) -> Any: ...
    def reason(self, text: str) -> str: ...
    def rank(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any: ...
    def device(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any: ...
    def replace_group(self, devices: Sequence[Any], group: int, epoch: int, dead: Sequence[Any]) -> list[Any]: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...


class HostKind:
    """Processes of this machine over shared memory."""

    name = "host"

    def create(self, name: str, num_bytes: int) -> Any:
        return _native.SharedBuffer.create(name, num_bytes)

    def bytes_of(self, buffer: Any) -> memoryview:
        return memoryview(buffer)

    def peer(self, buffer: Any) -> Any:
        """The buffer as another device has it."""
        return buffer

    def reason(self, text: str) -> str:
        """Why a message is corrupt."""
        return text

    def rank(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any:
        del compute_type
        prefill = instance.prefill
        types = {"row_type": prefill.row_type, "combine": prefill.combine}
        return _native.AttentionComm(expert_of_place=instance.placed.expert_of_place, **types, **ports)

    def device(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any:
        types = {"row_type": instance.prefill.row_type, "compute_type": compute_type}
        return _native.MoEComm(combine=instance.prefill.combine, **types, **ports)

    def replace_group(self, devices: Sequence[Any], group: int, epoch: int, dead: Sequence[Any]) -> list[Any]:
        """The buffers of the ranks that follow the dead ones; every device knows of them."""
        heirs = [self.create(f"attention-{group}-{j}", buffer.num_bytes) for j, buffer in enumerate(dead)]
        for device in devices:
            device.replace_group(group, heirs, epoch)
        return heirs

    def settle(self) -> None:
        """Wait until what was sent has arrived: in shared memory it has."""

    def close(self) -> None:
        """End what works in the background: nothing does."""


class AscendKind:
    """The Ascend host code over a fake runtime that runs the kernels on the twin; peers open buffers by key."""

    name = "ascend"

    def __init__(self, library: Path, kernels: Path, reach: str = "server") -> None:
        self._die = _native.ascend.Die(library=str(library), kernels=str(kernels), device=0)
        self._reach = reach

    def create(self, name: str, num_bytes: int) -> Any:
        del name
        return _native.ascend.SharedBuffer.create(self._die, num_bytes, self._reach)

    def bytes_of(self, buffer: Any) -> memoryview:
        """Device memory of the fake runtime is memory of this process."""
        return memoryview((ctypes.c_uint8 * buffer.num_bytes).from_address(buffer.address)).cast("B")

    def reason(self, text: str) -> str:
        """A status word has room for who, not for why."""
        del text
        return "a header or row index contradicts the layout"

    def rank(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any:
        self._check(instance, compute_type)
        prefill = instance.prefill
        peers = self._peers(ports.pop("moe_buffers"))
        how = {"row_type": prefill.row_type, "combine": prefill.combine}
        how |= {"expert_of_place": instance.placed.expert_of_place}
        return _native.ascend.AttentionComm(die=self._die, moe_buffers=peers, **how, **ports)

    def device(self, instance: Instance, compute_type: RowType, **ports: Any) -> Any:
        self._check(instance, compute_type)
        prefill = instance.prefill
        peers = [self._peers(group) for group in ports.pop("attention_buffers")]
        types = {"row_type": prefill.row_type, "combine": prefill.combine}
        return _native.ascend.MoEComm(die=self._die, attention_buffers=peers, **types, **ports)

    def replace_group(self, devices: Sequence[Any], group: int, epoch: int, dead: Sequence[Any]) -> list[Any]:
        """As on a host, by their keys."""
        heirs = [self.create(f"attention-{group}-{j}", buffer.num_bytes) for j, buffer in enumerate(dead)]
        for device in devices:
            device.replace_group(group, self._peers(heirs), epoch)
        return heirs

    def settle(self) -> None:
        """Wait until what was sent has arrived: the fake runtime has run the kernels."""

    def close(self) -> None:
        """End what works in the background: nothing does."""

    def opened(self, key: bytes, num_bytes: int) -> Any:
        """A buffer of another process."""
        return _native.ascend.SharedBuffer.open(self._die, key, num_bytes)

    def peer(self, buffer: Any) -> Any:
        """Opened by its key."""
        return self.opened(buffer.key, buffer.num_bytes)

    def _peers(self, buffers: Sequence[Any]) -> list[Any]:
        return [self.peer(buffer) for buffer in buffers]

    @staticmethod
    def _check(instance: Instance, compute_type: RowType) -> None:
        if compute_type is not instance.prefill.row_type:
            pytest.skip("the kernels compute on rows of the type that travels")


def ascend_kind(reach: str = "server") -> AscendKind:
    """With the runtime and the kernels that are built once."""
    return AscendKind(fake_runtime(), kernels_folder(), reach)
