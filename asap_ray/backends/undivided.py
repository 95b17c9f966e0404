"""A whole model on the cores of one process: passes and pulls one after the other, in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host_comm import DTYPES
from asap_ray.backends.kv_memory import node_bytes
from asap_ray.backends.shared_pages import SharedPages
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch
from asap_ray.config import ServeConfig
from asap_ray.kvcache.pool import BlockPool
from asap_ray.kvcache.storage import Storage
from asap_ray.messages import Pages
from asap_ray.models.model import Model
from asap_ray.protocol import Finished

_SHARE: Final = 4
"""Of the node's memory, one part in so many is for pages unless the configuration says how much."""

_T = TypeVar("_T")


class UndividedHost:
    """What asks first is computed first, so requests that each ask for one pass at a time take turns.

    Whatever writes pages does so in the one thread: blocks that were let go of and given to another request are not
    written any more once that one's work begins.
    """

    def __init__(self, config: ServeConfig, model: Model) -> None:
        """Read all weights, and lay out the pages.

        Raises:
            ConfigError: the memory for pages holds no block.
        """
        self.fingerprint = model.fingerprint
        self._model = model.undivided(SoloCollective(), DTYPES[config.compute_type], config.expert_type)
        spec = self._model.attention.cache_spec(config.kv_cache.block_size)
        num_blocks = spec.num_blocks(config.kv_cache.memory_bytes or node_bytes() // _SHARE)
        self.pages = Storage(spec, num_blocks)
        self.pool = BlockPool(num_blocks, spec.block_size)
        self._transport = SharedPages(self.pages)
        self._model.attention.keep_in(self.pages)
        self._thread = ThreadPoolExecutor(1, "model", initializer=torch.set_num_threads, initargs=(config.threads,))

    async def start(self, batch: Batch) -> Any:
        """The state of a batch's first pass."""
        return await self._run(lambda: drive(self._model.start(batch)))

    async def step(self, state: Any) -> Finished:
        """One pass."""
        return await self._run(lambda: drive(self._model.step(state)))

    async def pull(self, source: Sequence[Pages], table: Sequence[int], into: Sequence[int], num_tokens: int) -> None:
        """See `Transport`."""
        await self._run(lambda: self._transport.pull(source, table, into, num_tokens))

    def close(self) -> None:
        """Finish what is under way; what waits is not begun."""
        self._thread.shutdown(cancel_futures=True)

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
