"""Attention on a die, through torch-npu: weights, hidden states and KV pages live there."""

# Shapes: see asap_ray/kvcache/storage.py.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from asap_ray.backends.ascend.die_kernels import DieKernels
from asap_ray.config import ServeConfig
from asap_ray.kvcache.kinds import CacheSpec
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.models.kernels import Kernels
from asap_ray.protocol import Collective

DIE_SHARE: Final = 0.9
"""Of a die's memory; the rest is the runtime's, and what torch-npu's allocator cannot give back in one piece."""


class DieStorage(Storage):
    """Pages on a die, read and written by whole rows.

    CANN's operators may copy a tensor whose rows do not lie side by side before they look at it, and a part of each
    row of all pages is such a tensor.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, memory: torch.Tensor) -> None:
        super().__init__(spec, num_blocks, memory)
        self._rows = {kind.name: self.pages(kind.name).flatten(1, 3) for kind in spec.kinds}  # [L, R, W]

    def write(self, name: str, layer_idx: int, place_Gn: torch.Tensor, rows_GnD: Sequence[torch.Tensor]) -> None:
        """See `Storage`."""
        rows_GnW = torch.cat([*rows_GnD], dim=-1)
        self._rows[name][layer_idx].index_copy_(0, place_Gn.flatten(), rows_GnW.flatten(0, 1))

    def read(self, name: str, layer_idx: int, place_Gm: torch.Tensor) -> list[torch.Tensor]:
        """See `Storage`; views of one tensor."""
        rows_XW = self._rows[name][layer_idx].index_select(0, place_Gm.flatten())
        widths = [part_LRD.shape[-1] for part_LRD in self._parts[name]]
        return [*torch.split(rows_XW.view(*place_Gm.shape, -1), widths, dim=-1)]


class ThroughHost:
    """A `Collective` of dies that goes through host memory: HCCL is closed, and there is none in CI."""

    def __init__(self, host: Collective) -> None:
        self._host = host
        self.rank = host.rank
        self.size = host.size

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Collective`."""
        gathered: torch.Tensor = self._host.all_gather(rows.cpu())
        return gathered.to(rows.device)

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Collective`."""
        part: torch.Tensor = self._host.reduce_scatter(rows.cpu())
        return part.to(rows.device)

    def broadcast(self, message: bytes | None) -> bytes:
        """See `Collective`."""
        return self._host.broadcast(message)


class DiePlace:
    """See `Place`; the first die that this process sees."""

    def __init__(self, device: torch.device) -> None:
        self.kernels: Kernels = DieKernels(device)
        self._device = device

    def collective(self, host: Collective) -> Collective:
        """See `Place`; one rank has nobody to talk to."""
        return host if host.size == 1 else ThroughHost(host)

    def total_bytes(self, config: ServeConfig) -> int:
        """See `Place`; without a number, most of the die's."""
        return config.device_memory_bytes or int(DIE_SHARE * self._memory()[1])

    def used_bytes(self) -> int:
        """See `Place`; whoever took it."""
        free, total = self._memory()
        return total - free

    def pages(self, name: str, spec: CacheSpec, num_blocks: int) -> tuple[Storage, PageMemory | None]:
        """See `Place`; nobody else finds them."""
        del name
        memory = torch.empty(num_blocks * spec.block_bytes, dtype=torch.uint8, device=self._device)
        return DieStorage(spec, num_blocks, memory), None

    def _memory(self) -> tuple[int, int]:
        """Free and whole."""
        module: Any = torch.get_device_module(self._device)
        found: tuple[int, int] = module.mem_get_info()
        return found
