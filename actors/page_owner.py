"""Whose bookkeeping the pages of a group follow: two frontends that both hand out its blocks would mix up prompts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from asap_ray.batch import Batch, Token
from asap_ray.errors import PeerTimeout, Unavailable

Key = tuple[str, int, int]
"""Of a batch in flight."""

Owner = tuple[str, int]
"""A frontend, and which of its caches for this group its tables are of."""

_LOOK_S: Final = 0.5


@dataclass(slots=True)
class _Running:
    """A batch on its way through the group."""

    unfinished: set[str]  # requests that get tokens yet


class PageOwner:
    """Batches with blocks come from one frontend, until another one takes over for good.

    A frontend that comes (a redeployment, or after one was killed) waits until no batch of the one before runs, and
    as long as that one is here also until no prompt of it is under way. It begins with empty caches, and nothing of
    the one before can write into them. So does a frontend that has lost sight of what runs here, and begins anew
    (`Batch.cache_life`). What runs unheard meanwhile ends with its next token. All methods belong to one asyncio loop.
    """

    def __init__(
        self, is_here: Callable[[str], bool], deadline_s: float, abort: Callable[[Iterable[str]], None]
    ) -> None:
        """`is_here` says whether a frontend may still send; `abort` ends requests with their next token."""
        self._is_here = is_here
        self._deadline_s = deadline_s
        self._abort = abort
        self._owner: Owner = ("", 0)
        self._former: set[Owner] = set()
        self._newest: dict[str, int] = {}  # by frontend, which of its caches began last
        self._running: dict[Key, _Running] = {}
        self._under_way: set[str] = set()  # prompts of the owner that hold blocks
        self._changed = asyncio.Event()

    async def begin(self, frontend: str, key: Key, batch: Batch) -> None:
        """A batch comes; one without blocks is nobody's.

        Raises:
            PeerTimeout: the frontend before did not end within the deadline.
            Unavailable: another frontend has taken over, or the same one has begun anew.
        """
        holders = {request.request_id for request in batch.requests if request.table}
        if not holders:
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._take_over((frontend, batch.cache_life))
        except TimeoutError:
            raise PeerTimeout(
                f"this group's blocks are still used by {self._owner[0]} after {self._deadline_s:g} s: "
                f"{len(self._running)} batches run, {len(self._under_way)} prompts are under way"
            ) from None
        self._under_way = (self._under_way | holders) - set(batch.forget)
        unfinished = {request.request_id for request in batch.requests if not request.future_tokens}
        self._running[key] = _Running(unfinished)

    def drop(self, key: Key) -> None:
        """A batch that began was not put: nothing of it runs."""
        if running := self._running.pop(key, None):
            self._under_way -= running.unfinished
            self._changed.set()

    def passed(self, key: Key, tokens: Iterable[Token]) -> None:
        """A pass of a batch is done."""
        if (running := self._running.get(key)) is None:
            return
        finished = {token.request_id for token in tokens if token.finish_reason}
        running.unfinished -= finished
        self._under_way -= finished
        if not running.unfinished:
            del self._running[key]
            self._changed.set()

    async def _take_over(self, owner: Owner) -> None:
        frontend, life = owner
        self._newest[frontend] = max(life, self._newest.get(frontend, life))
        self._changed.set()  # who waits for an older one leaves at once
        while self._owner != owner:
            if owner in self._former or life < self._newest[frontend]:
                raise Unavailable("another frontend has taken over this group")
            is_awaited = self._under_way and self._owner[0] != frontend and self._is_here(self._owner[0])
            if not self._running and not is_awaited:
                self._former.add(self._owner)
                self._owner = owner
                self._under_way.clear()
                return
            if self._owner[0] == frontend or not self._is_here(self._owner[0]):  # nobody hears what runs
                self._abort({each for running in self._running.values() for each in running.unfinished})
            self._changed.clear()
            with contextlib.suppress(TimeoutError):  # that the owner has gone, nobody says
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)
