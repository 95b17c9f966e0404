"""Prompts in turns (docs/policies.md): short ones first within a bound, long ones in pieces; nothing runs alone."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import count
from typing import Final

from asap_ray.batch import Batch, Request
from asap_ray.scheduler.cut import Cut, EqualWork
from asap_ray.scheduler.order import HeadStart, Order
from asap_ray.scheduler.policy import Group
from asap_ray.scheduler.shares import UNLIMITED, Cost, tokens
from asap_ray.scheduler.work import by_work
from asap_ray.spec import PrefillSpec

TURN: Final = 3
"""A turn has so many times `inflection_tokens`."""


@dataclass(order=True, slots=True)
class _Prompt:
    """A prompt, as far as no batch has it."""

    key: float
    number: int  # of equal keys the least goes first
    request: Request = field(compare=False)
    full_at: float = field(compare=False)  # from here on its batch goes as it is
    pieces: deque[Request] = field(compare=False)  # before a group has one: as they are where nothing of it is cached
    num_running: int = field(compare=False, default=0)
    is_cancelled: bool = field(compare=False, default=False)
    group: int = field(compare=False, default=-1)  # that holds its keys and values, once a piece was taken


class Turns:
    """`Policy`: batches of at most one turn's work, in the order of `order`; longer prompts in the pieces of `cut`.

    A batch takes prompts while they fit in a turn, and until it has `inflection_tokens` whatever they are. A cut
    prompt stays on the group that holds its keys and values, one at a time a group, and each of its pieces has its
    place in the order: pieces in a row overlap with each other in the group's two slots, and a short prompt waits
    for a piece at most. No group is kept for anything.
    """

    def __init__(
        self,
        prefill: PrefillSpec,
        cost: Cost = tokens,
        *,
        turn_tokens: int | None = None,
        order: Order | None = None,
        cut: Cut | None = None,
    ) -> None:
        """A turn is the work of one prompt of `turn_tokens`, in the unit of `cost`: a prompt's is its pieces' sum."""
        self._prefill = prefill
        self._cost = cost
        self._turn_tokens = min(turn_tokens or TURN * prefill.inflection_tokens, prefill.solo_tokens)
        self._turn = cost(0, self._turn_tokens)
        self._order = order or HeadStart(cost, self._turn)
        self._cut = cut or EqualWork(cost, self._turn)
        self._number = count()
        self._waiting: dict[str, _Prompt] = {}  # none of their pieces is taken
        self._short: list[_Prompt] = []  # of them, those that stay whole
        self._long: list[_Prompt] = []
        self._under_way: dict[int, _Prompt] = {}  # the cut prompt a group goes on with
        self._running: dict[str, _Prompt] = {}  # cut prompts some of whose pieces are taken
        self._forget: dict[int, list[str]] = {}  # what the next batch of a group tells it to let go of
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        """See `Policy`."""
        return len(self._waiting)

    @property
    def longest_prompt(self) -> int:
        """See `Policy`: no piece is longer than a turn, however many there are."""
        return UNLIMITED

    def has(self, request_id: str) -> bool:
        """See `Policy`."""
        return request_id in self._waiting or request_id in self._running

    def tokens_before(self, request: Request) -> int:
        """See `Policy`; whoever comes later and passes it is not foreseen."""
        key = self._order(request)
        prompts = (*self._waiting.values(), *self._running.values())
        return sum(piece.num_tokens for prompt in prompts if prompt.key <= key for piece in prompt.pieces)

    def push(self, request: Request, now: float) -> None:
        """See `Policy`."""
        self._push(request, self._order(request), next(self._number), now + self._prefill.max_wait_s)

    def remove(self, request_id: str) -> bool:
        """See `Policy`. Of a prompt that has begun, the pieces to come; its group hears of it when none runs."""
        if prompt := self._waiting.pop(request_id, None):
            self._queue_of(prompt).remove(prompt)
            self.num_tokens -= prompt.request.num_tokens
            return True
        prompt = self._running.get(request_id)
        if prompt is None or not prompt.pieces:
            return False
        self._drop_pieces(prompt)
        prompt.is_cancelled = True
        self._end_if_idle(prompt)
        return True

    def take(self, now: float, groups: Sequence[Group]) -> tuple[Group, Batch] | None:
        """See `Policy`."""
        for group in by_work((each for each in groups if each.is_up and each.num_free > 0), self._cost):
            chosen, closes_at = self._fill(group)
            if closes_at <= now:
                pieces = tuple(self._take(prompt, ahead, group.index) for prompt, ahead in chosen)
                return group, Batch(pieces, tuple(self._forget.pop(group.index, ())))
        return None

    def wake_at(self, now: float, groups: Sequence[Group]) -> float | None:  # noqa: ARG002
        """See `Policy`."""
        free = [group for group in groups if group.is_up and group.num_free > 0]
        closes_at = min((self._fill(group)[1] for group in free), default=float("inf"))
        return None if closes_at == float("inf") else closes_at

    def ended(self, batch: Batch) -> None:
        """See `Policy`."""
        for request in batch.requests:
            if prompt := self._running.get(request.request_id):
                prompt.num_running -= 1
                self._end_if_idle(prompt)

    def put_back(self, prompts: Sequence[Request]) -> None:
        """See `Policy`; of a cancelled prompt nothing starts over."""
        for request in reversed(prompts):
            prompt = self._running.get(request.request_id)
            if prompt and prompt.is_cancelled:
                prompt.num_running -= 1
                self._end_if_idle(prompt)
            elif prompt:
                self._start_over(prompt)
            elif request.request_id not in self._waiting:  # else another of its pieces came back before
                self._push_front(request)

    def abandon(self, group: int) -> None:
        """See `Policy`."""
        if prompt := self._under_way.get(group):
            if prompt.num_running:
                self._drop_pieces(prompt)
            else:
                self._start_over(prompt)

    def _fill(self, group: Group) -> tuple[list[tuple[_Prompt, deque[Request]]], float]:
        """The prompts whose next pieces are the next batch of a group, and when it goes as it is; inf: never.

        Each with its pieces as that group would run them.
        """
        chosen: list[tuple[_Prompt, deque[Request]]] = []
        load = _Load()
        for prompt in self._in_order(group.index):
            ahead = self._ahead(prompt, group)
            if not ahead:
                continue
            added = _Load.of(ahead[0], group, self._cost)
            if not self._fits(load, added):
                return chosen, float("-inf")
            load.add(added)
            chosen.append((prompt, ahead))
        if load.num_tokens >= self._prefill.inflection_tokens:
            return chosen, float("-inf")
        return chosen, min((prompt.full_at for prompt, _ in chosen), default=float("inf"))

    def _in_order(self, group: int) -> Iterator[_Prompt]:
        """What a group may run: every short prompt, and the long one it goes on with or the first one."""
        long = self._under_way.get(group)
        return merge(self._short, [long] if long else self._long[:1])

    def _ahead(self, prompt: _Prompt, group: Group) -> deque[Request]:
        """The pieces of a prompt that no batch has, for a group; none if it leaves the prompt to another."""
        if prompt.group >= 0 or (seen := group.seen(prompt.request)) is prompt.request:
            return prompt.pieces
        return deque(self._cut(seen)) if seen else deque()

    def _fits(self, load: _Load, added: _Load) -> bool:
        if not load.num_tokens:
            return True
        num_tokens = load.num_tokens + added.num_tokens
        if self._prefill.is_solo(num_tokens) or load.kv_tokens + added.kv_tokens > self._prefill.max_tokens:
            return False
        is_in_turn = num_tokens <= self._turn_tokens and load.work + added.work <= self._turn
        return is_in_turn or load.num_tokens < self._prefill.inflection_tokens

    def _take(self, prompt: _Prompt, ahead: deque[Request], group: int) -> Request:
        """The next piece of a prompt, for a group that has `ahead` of it to run."""
        request_id = prompt.request.request_id
        if self._waiting.pop(request_id, None):
            self._queue_of(prompt).remove(prompt)
            self.num_tokens -= ahead[0].cached_tokens
        piece = ahead.popleft()
        prompt.pieces = ahead
        self.num_tokens -= piece.num_tokens
        if not piece.is_whole:
            prompt.num_running += 1
            prompt.group = group
            self._running[request_id] = prompt
            self._under_way[group] = prompt
            if not piece.future_tokens:
                del self._under_way[group]
        return piece

    def _push(self, request: Request, key: float, number: int, full_at: float) -> None:
        prompt = _Prompt(key, number, request, full_at, deque(self._cut(request)))
        if len(prompt.pieces) > 1:
            prompt.full_at = float("-inf")  # it needs no company
        insort(self._queue_of(prompt), prompt)
        self._waiting[request.request_id] = prompt
        self.num_tokens += request.num_tokens

    def _push_front(self, request: Request) -> None:
        self._push(request, float("-inf"), -next(self._number), float("-inf"))

    def _queue_of(self, prompt: _Prompt) -> list[_Prompt]:
        """Of a prompt that waits: its pieces are those of the whole prompt."""
        return self._long if len(prompt.pieces) > 1 else self._short

    def _end_if_idle(self, prompt: _Prompt) -> None:
        """Nothing of it runs and nothing is to come: it is over."""
        if prompt.num_running or prompt.pieces:
            return
        del self._running[prompt.request.request_id]
        if prompt.is_cancelled:  # all its batches have ended, so none of them can come behind the one that tells this
            self._forget.setdefault(prompt.group, []).append(prompt.request.request_id)

    def _start_over(self, prompt: _Prompt) -> None:
        self._drop_pieces(prompt)
        del self._running[prompt.request.request_id]
        self._push_front(prompt.request)

    def _drop_pieces(self, prompt: _Prompt) -> None:
        """They will not run: the group that holds what they need is lost, or nobody waits for them."""
        self.num_tokens -= sum(piece.num_tokens for piece in prompt.pieces)
        prompt.pieces.clear()
        self._under_way = {group: other for group, other in self._under_way.items() if other is not prompt}


@dataclass(slots=True)
class _Load:
    """What a batch has so far, or what one piece adds to it."""

    num_tokens: int = 0
    kv_tokens: int = 0
    work: float = 0.0

    @classmethod
    def of(cls, piece: Request, group: Group, cost: Cost) -> _Load:
        return cls(piece.num_tokens, group.kv_tokens(piece), cost(piece.past_tokens, piece.num_tokens))

    def add(self, other: _Load) -> None:
        self.num_tokens += other.num_tokens
        self.kv_tokens += other.kv_tokens
        self.work += other.work
