"""The blocks of one attention group's cache: which request holds which, and which are free."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.errors import ConfigError, RequestError


class BlockPool:
    """Counts who holds each of `num_blocks` blocks of `block_size` tokens; their content lies in `Storage`.

    A block is held by one request or more, or idle (held by none, and kept for its content), or free. Pure
    bookkeeping: it lives beside the scheduler, and tables travel to the ranks with the batches.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """All blocks are free.

        Raises:
            ConfigError: a number is below 1.
        """
        if min(num_blocks, block_size) < 1:
            raise ConfigError(f"num_blocks={num_blocks} and block_size={block_size} must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_holders = [0] * num_blocks
        self._free = list(range(num_blocks))[::-1]
        self._kept: set[int] = set()
        self._tables: dict[str, tuple[int, ...]] = {}
        self._held: dict[str, list[int]] = {}  # in the order of the prompt, then what was swapped out

    @property
    def num_free(self) -> int:
        """Blocks that a reservation can take."""
        return len(self._free)

    def is_idle(self, block: int) -> bool:
        """Whether it is kept and nobody holds it."""
        return block in self._kept and not self._num_holders[block]

    def has(self, request_id: str) -> bool:
        """Whether a request holds blocks."""
        return request_id in self._tables

    def table(self, request_id: str) -> tuple[int, ...]:
        """The blocks of a request, in the order of its tokens."""
        return self._tables[request_id]

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-num_tokens // self.block_size)

    def check(self, num_tokens: int) -> None:
        """Refuse what could never be reserved; everything else fits once others have let go.

        Raises:
            RequestError: more tokens than all blocks have room for.
        """
        room = self.num_blocks * self.block_size
        if num_tokens > room:
            raise RequestError(
                f"prompt and answer have up to {num_tokens} tokens; the cache of an attention group holds {room}",
                param="prompt",
            )

    def reserve(self, request_id: str, num_tokens: int, shared: Sequence[int] = ()) -> tuple[int, ...] | None:
        """The table of a new request: blocks that others hold or kept, then fresh ones up to `num_tokens` tokens.

        All that the request will ever need, its answer included, so nothing that runs can run out.

        Returns:
            None if too few blocks are free; then nothing has changed, and the request stays queued.
        """
        assert request_id not in self._tables, f"request {request_id!r} holds blocks already"
        num_fresh = self.blocks_for(num_tokens) - len(shared)
        assert num_fresh >= 0, f"{len(shared)} shared blocks are more than {num_tokens} tokens need"
        if num_fresh > self.num_free:
            return None
        table = (*shared, *(self._free.pop() for _ in range(num_fresh)))
        for block in table:
            self._num_holders[block] += 1
        self._tables[request_id] = table
        self._held[request_id] = list(table)
        return table

    def swap(self, request_id: str, index: int, block: int) -> None:
        """Hold `block` in the place of the request's own block number `index`, which has the same content.

        The table stays as it is, because a pass may be reading it; the own block is let go with the rest.
        """
        held = self._held[request_id]
        held.append(held[index])
        held[index] = block
        self._num_holders[block] += 1

    def release(self, request_id: str) -> list[int]:
        """Let go of everything a request holds; the blocks that are idle from now on, the end of the prompt first."""
        del self._tables[request_id]
        idle = []
        for block in reversed(self._held.pop(request_id)):
            self._num_holders[block] -= 1
            if self.is_idle(block):
                idle.append(block)
            elif not self._num_holders[block]:
                self._free.append(block)
        return idle

    def keep(self, block: int) -> None:
        """A held block becomes idle, not free, when it is let go."""
        assert self._num_holders[block], f"block {block} is held by nobody"
        self._kept.add(block)

    def drop(self, block: int) -> None:
        """Free an idle block."""
        assert self.is_idle(block), f"block {block} is not idle"
        self._kept.remove(block)
        self._free.append(block)
