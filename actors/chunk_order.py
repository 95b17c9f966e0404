"""The chunks of prompts in order, and what becomes of a prompt whose frontend is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from asap_ray.batch import Batch, Request
from asap_ray.errors import PeerTimeout


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A prompt with chunks to come."""

    frontend: str
    cache_life: int  # of the frontend's caches for this group
    num_tokens: int  # in the chunks so far


class ChunkOrder:
    """Lets batches into a group, each chunk behind the one before it: calls of an actor may overtake each other.

    A prompt under way ends with its last chunk, when a batch says to forget it, or when its frontend is gone or has
    lost it (`Batch.cache_life`): the next batch says so then. Nothing else of it is kept on the group's ranks, which
    all see the same batches in the same order. All methods belong to one asyncio loop.
    """

    def __init__(self, put: Callable[[Batch], None], is_here: Callable[[str], bool], deadline_s: float) -> None:
        """`put` takes a batch whose turn it is; `is_here` says whether a frontend may still send."""
        self._put = put
        self._is_here = is_here
        self._deadline_s = deadline_s
        self._under_way: dict[str, _UnderWay] = {}
        self._changed = asyncio.Condition()

    async def put(self, frontend: str, batch: Batch) -> None:
        """Put a batch once the chunk before each of its chunks has been.

        Raises:
            PeerTimeout: it did not come within the deadline; the batch was not put.
        """
        async with self._changed:
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._changed.wait_for(lambda: not self._early(batch))
            except TimeoutError:
                (early, *_) = self._early(batch)
                raise PeerTimeout(
                    f"tokens {early.past_tokens} and on of prompt {early.request_id!r}: "
                    f"those before them did not come within {self._deadline_s:g} s"
                ) from None
            self._put(self._noted(frontend, batch))
            self._changed.notify_all()

    def _early(self, batch: Batch) -> list[Request]:
        """Chunks that have to wait for the one before them."""
        return [each for each in batch.requests if not each.is_first and not self._is_next(each, batch.cache_life)]

    def _is_next(self, request: Request, cache_life: int) -> bool:
        prompt = self._under_way.get(request.request_id)
        return prompt is not None and (prompt.cache_life, prompt.num_tokens) == (cache_life, request.past_tokens)

    def _noted(self, frontend: str, batch: Batch) -> Batch:
        """The batch, telling also of prompts whose frontend is gone, or took this group for lost when it was not."""
        orphans = [
            name
            for name, prompt in self._under_way.items()
            if not self._is_here(prompt.frontend)
            or (prompt.frontend == frontend and prompt.cache_life < batch.cache_life)
        ]
        for name in (*batch.forget, *orphans):
            self._under_way.pop(name, None)
        for request in batch.requests:
            if request.future_tokens:
                num_tokens = request.past_tokens + request.num_tokens
                self._under_way[request.request_id] = _UnderWay(frontend, batch.cache_life, num_tokens)
            else:
                self._under_way.pop(request.request_id, None)
        return replace(batch, forget=(*batch.forget, *orphans))
