"""Where attention computes: functions, collectives and memory of one kind of device."""

from __future__ import annotations

from typing import Protocol

from asap_ray.backends.kv_memory import NODE_SHARE, node_bytes, process_bytes
from asap_ray.config import ServeConfig
from asap_ray.kvcache.kinds import CacheSpec
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.models.host_kernels import HOST
from asap_ray.models.kernels import Kernels
from asap_ray.protocol import Collective


class Place(Protocol):
    """Of one rank."""

    @property
    def kernels(self) -> Kernels:
        """What its layers compute with."""

    def collective(self, host: Collective) -> Collective:
        """That of its group, on tensors of this place."""

    def total_bytes(self, config: ServeConfig) -> int:
        """Memory of the device; `device_memory_bytes` if that is given."""

    def used_bytes(self) -> int:
        """What of it is taken: once a model is loaded, its weights above all."""

    def pages(self, name: str, spec: CacheSpec, num_blocks: int) -> tuple[Storage, PageMemory | None]:
        """So many blocks of KV cache; and where other processes find them, who may as long as that object lives."""


class HostPlace:
    """See `Place`: the CPUs and the memory of this process."""

    kernels = HOST

    def collective(self, host: Collective) -> Collective:
        """See `Place`."""
        return host

    def total_bytes(self, config: ServeConfig) -> int:
        """See `Place`; without a number, an equal part of most of the node's."""
        return config.device_memory_bytes or int(NODE_SHARE * node_bytes()) // config.parallel.num_devices

    def used_bytes(self) -> int:
        """See `Place`."""
        return process_bytes()

    def pages(self, name: str, spec: CacheSpec, num_blocks: int) -> tuple[Storage, PageMemory | None]:
        """See `Place`; decode instances map them."""
        memory = PageMemory.create(name, num_blocks * spec.block_bytes)
        return Storage(spec, num_blocks, memory.bytes), memory
