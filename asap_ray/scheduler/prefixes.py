"""The prefix caches of all DP groups, as their scheduler uses them (ADR 0006): who has what, who holds which blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from asap_ray.batch import Batch, Request
from asap_ray.errors import RequestError
from asap_ray.kvcache.placement import Offer, patience_s
from asap_ray.kvcache.prefix import PrefixCache

MOST_LEFT: Final = 64
"""A group looks past at most so many prompts that are better off elsewhere; then it takes what comes."""


@dataclass(slots=True)
class _Prompt:
    """A prompt from its arrival until its blocks are let go."""

    request: Request  # whole
    keys: Sequence[bytes]
    left_s: float | None = None  # when a group with room first left it for a better one
    group: int | None = None  # that holds its blocks
    num_running: int = 0  # pieces in flight
    is_over: bool = False  # no piece is to come
    is_lent: bool = False  # its blocks are another's to let go


@dataclass(frozen=True, slots=True)
class Backlog:
    """What each group that is up has to do before a new prompt, in seconds, and the seconds of a token there."""

    queue_s: dict[int, float]
    token_s: float

    def cost(self, past_tokens: int, num_tokens: int) -> float:  # noqa: ARG002
        """Seconds of a piece, as the served policies count: by its tokens."""
        return num_tokens * self.token_s


class Prefixes:
    """One `PrefixCache` a group, or none at all: then every prompt is computed whole and keeps nothing.

    Prompts are known from `add` on. One reserves its blocks, answer included, when its first piece is taken, and
    holds them until its last one has ended; so nothing that runs can run out of them.
    """

    def __init__(self, make_cache: Callable[[], PrefixCache] | None = None, num_groups: int = 0) -> None:
        """`make_cache` makes an empty one, for a start or after a group was lost."""
        self._make_cache = make_cache
        self.caches = [make_cache() for _ in range(num_groups)] if make_cache else []
        self.wake_at = float("inf")  # when a prompt that was left since `look` is not left any longer
        self._lives = [0] * num_groups
        self._num_left = 0
        self._prompts: dict[str, _Prompt] = {}

    @property
    def room(self) -> int:
        """Tokens that every cache has room for; there is one."""
        return min(cache.pool.num_blocks * cache.pool.block_size for cache in self.caches)

    def check(self, request: Request) -> None:
        """Refuse what no group has blocks for, even if it had them all.

        Raises:
            RequestError: prompt and answer have more tokens than a cache.
        """
        for cache in self.caches:
            cache.pool.check(request.total_tokens)
        is_lent = any(cache.pool.has(request.request_id) for cache in self.caches)
        if is_lent or request.request_id in self._prompts:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")

    def add(self, request: Request, keys: Sequence[bytes]) -> None:
        """A whole prompt waits from now on; `keys` are those of its full blocks."""
        if self.caches:
            self._prompts[request.request_id] = _Prompt(request, keys)

    def whole(self, piece: Request) -> Request:
        """The prompt of a piece."""
        prompt = self._prompts.get(piece.request_id)
        return prompt.request if prompt else piece

    def look(self) -> None:
        """The groups look at what waits anew."""
        self.wake_at = float("inf")
        self._num_left = 0

    def seen(self, here: int, request: Request, now: float, backlog: Backlog) -> Request | None:
        """What group `here` would have to compute of a prompt; None if it leaves it to a group that is done sooner.

        But no longer than the prefix there saves (`placement.patience_s`).
        """
        if (prompt := self._prompts.get(request.request_id)) is None:
            return request
        cached = {group: self.caches[group].match(prompt.keys, request.num_tokens) for group in backlog.queue_s}
        if max(cached.values()) > cached[here] and now < (
            until := self._left_until(prompt, here, cached, now, backlog)
        ):
            self.wake_at = min(self.wake_at, until)
            self._num_left += 1
            return None
        return request.behind(cached[here]) if cached[here] else request

    def _left_until(self, prompt: _Prompt, here: int, cached: dict[int, int], now: float, backlog: Backlog) -> float:
        offers = {
            group: Offer(group=group, cached_tokens=cached[group], queue_s=queue_s)
            for group, queue_s in backlog.queue_s.items()
        }
        patience = patience_s(offers[here], prompt.request.num_tokens, list(offers.values()), backlog.cost)
        if not patience or self._num_left >= MOST_LEFT:
            return now
        if prompt.left_s is None:
            prompt.left_s = now
        return prompt.left_s + patience

    def reserve(self, group: int, batch: Batch) -> tuple[Batch, list[Request]]:
        """Blocks for what begins with a batch: what of it can run, with its tables, and the prompts that have to wait.

        Those are the first one that finds no room and all that would begin behind it: no smaller one passes it.
        """
        running: list[Request] = []
        waiting: list[Request] = []
        for piece in batch.requests:
            prompt = self._prompts.get(piece.request_id)
            if prompt is None:
                running.append(piece)
            elif piece.is_first and (waiting or not self._hold(group, prompt, piece)):
                waiting.append(prompt.request)
            else:
                prompt.num_running += 1
                running.append(replace(piece, table=self.caches[group].pool.table(piece.request_id)))
        life = self._lives[group] if self._lives else 0
        return replace(batch, requests=tuple(running), cache_life=life), waiting

    def _hold(self, group: int, prompt: _Prompt, piece: Request) -> bool:
        """Reserve all a prompt will ever need, if there is room and its prefix is still as the group saw it."""
        cache, prompt_tokens = self.caches[group], piece.prompt_tokens
        if cache.match(prompt.keys, prompt_tokens) != piece.cached_tokens:  # a batch's first prompts evicted some
            return False
        if cache.reserve(piece.request_id, prompt.keys, prompt_tokens, piece.total_tokens) is None:
            return False
        prompt.group = group
        return True

    def computed(self, batch: Batch) -> None:
        """The first pass of a batch has ended well on every rank: what is in its blocks can be found from now on."""
        for piece, prompt in self._known(batch):
            if prompt.group is not None:
                self.caches[prompt.group].publish(piece.request_id, piece.past_tokens + piece.num_tokens)

    def lend(self, request_id: str) -> None:
        """The blocks of a prompt that runs outlive it: whoever asked for that releases them (`kvcache.handoff`)."""
        self._prompts[request_id].is_lent = True

    def ended(self, batch: Batch) -> None:
        """A batch is over, well or not. Of a group that was lost meanwhile nothing more is to come."""
        for piece, prompt in self._known(batch):
            prompt.num_running -= 1
            prompt.is_over |= prompt.group is None or not piece.future_tokens
            self._end_if_idle(prompt)

    def put_back(self, batch: Batch) -> None:
        """The prompts of a batch start over."""
        for _, prompt in self._known(batch):
            prompt.num_running -= 1
            if not prompt.num_running:
                self._release(prompt)
            self._end_if_idle(prompt)

    def cancel(self, request_id: str) -> None:
        """Nothing more of a prompt is to come."""
        if prompt := self._prompts.get(request_id):
            prompt.is_over = True
            self._end_if_idle(prompt)

    def lose(self, group: int) -> None:
        """A group was lost, and all it had."""
        self.restore(group)
        for prompt in self._prompts.values():
            if prompt.group == group:
                prompt.group = None

    def restore(self, group: int) -> None:
        """A group is new: its cache is empty, and has the room it has now."""
        if self._make_cache is not None:
            self._lives[group] += 1
            counts = self.caches[group].counts
            self.caches[group] = self._make_cache()
            self.caches[group].counts = counts  # totals go on

    def _known(self, batch: Batch) -> Iterable[tuple[Request, _Prompt]]:
        return [
            (piece, self._prompts[piece.request_id]) for piece in batch.requests if piece.request_id in self._prompts
        ]

    def _end_if_idle(self, prompt: _Prompt) -> None:
        if prompt.is_over and not prompt.num_running:
            self._release(prompt)
            del self._prompts[prompt.request.request_id]

    def _release(self, prompt: _Prompt) -> None:
        if prompt.group is not None and not prompt.is_lent:
            self.caches[prompt.group].release(prompt.request.request_id)
            prompt.group = None
