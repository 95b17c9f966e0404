"""The prefix cache of one attention group: what was computed once is held again instead of computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.kvcache.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Reservation:
    """The blocks of a request, and how much of its prompt is in them already."""

    table: tuple[int, ...]
    cached_tokens: int


@dataclass(slots=True)
class PrefixCounts:
    """Totals since the start; `hit_tokens` over `queried_tokens` is the hit rate."""

    queried_tokens: int = 0  # prompt tokens of all reservations
    hit_tokens: int = 0  # of them, those that need no computation
    evicted_blocks: int = 0


@dataclass(slots=True)
class _Prompt:
    """A request that holds blocks."""

    keys: Sequence[bytes]
    num_published: int  # of its blocks, those whose keys are known to all


class PrefixCache:
    """Shares full blocks by their keys, and keeps them idle until room is needed, the least recently used first.

    A request lets go of the end of its prompt first, and whoever holds a block holds all before it. So the idle
    block that goes next never has another one behind it: a chain loses its end, not its middle.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Nothing is cached; `pool` is used by nobody else."""
        self.pool = pool
        self._blocks: dict[bytes, int] = {}  # by key
        self._keys: dict[int, bytes] = {}  # by block
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._prompts: dict[str, _Prompt] = {}
        self.counts = PrefixCounts()

    @property
    def num_available(self) -> int:
        """Blocks that a reservation can take: free ones and idle ones."""
        return self.pool.num_free + len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that requests hold."""
        return self.pool.num_blocks - self.num_available

    def match(self, keys: Sequence[bytes], num_tokens: int) -> int:
        """How many tokens of a prompt of `num_tokens` are cached: full blocks, and never its last token.

        The last row has to be computed, for its logits are the first token.
        """
        return len(self._match(keys, num_tokens)) * self.pool.block_size

    def reserve(self, request_id: str, keys: Sequence[bytes], prompt_tokens: int, kv_tokens: int) -> Reservation | None:
        """Blocks for a prompt and its answer, the cached ones first; idle blocks make room.

        They stay until `release`: whoever waits for them, a decode instance too, finds them as they are.

        Args:
            request_id: of no request that holds blocks.
            keys: of the prompt's full blocks (`block_keys`); without them nothing is shared.
            prompt_tokens: length of the prompt.
            kv_tokens: of prompt and answer together, whose keys and values are kept.

        Returns:
            None if others hold too much; then nothing has changed, and the request stays queued.
        """
        shared = self._match(keys, prompt_tokens)
        num_fresh = self.pool.blocks_for(kv_tokens) - len(shared)
        if num_fresh > self.num_available - sum(map(self.pool.is_idle, shared)):
            return None
        for block in shared:
            self._idle.pop(block, None)
        for _ in range(num_fresh - self.pool.num_free):
            self._evict()
        table = self.pool.reserve(request_id, kv_tokens, shared)
        assert table is not None
        self._prompts[request_id] = _Prompt(keys, len(shared))
        cached_tokens = len(shared) * self.pool.block_size
        self.counts.queried_tokens += prompt_tokens
        self.counts.hit_tokens += cached_tokens
        return Reservation(table, cached_tokens)

    def publish(self, request_id: str, num_computed: int) -> None:
        """The first `num_computed` tokens of a request are in its blocks, in every layer and on every rank.

        From now on others find them. If another one has published the same prefix meanwhile, that one's blocks stay
        the known ones, and this request holds them too.
        """
        prompt, table = self._prompts[request_id], self.pool.table(request_id)
        stop = min(num_computed // self.pool.block_size, len(prompt.keys))
        for index in range(prompt.num_published, stop):
            key, own = prompt.keys[index], table[index]
            known = self._blocks.setdefault(key, own)
            if known == own:
                self._keys[own] = key
                self.pool.keep(own)
            else:
                self._idle.pop(known, None)
                self.pool.swap(request_id, index, known)
        prompt.num_published = max(prompt.num_published, stop)

    def release(self, request_id: str) -> None:
        """Let go of a request's blocks; those that were published stay until room is needed."""
        del self._prompts[request_id]
        self._idle.update(dict.fromkeys(self.pool.release(request_id)))

    def _match(self, keys: Sequence[bytes], num_tokens: int) -> list[int]:
        shared = []
        for key in keys[: (num_tokens - 1) // self.pool.block_size]:
            if (block := self._blocks.get(key)) is None:
                break
            shared.append(block)
        return shared

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._keys.pop(block)]
        self.pool.drop(block)
        self.counts.evicted_blocks += 1
