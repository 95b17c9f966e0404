"""The queues of a synchronous system: which prompts enter the next step, and on which DP group."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Protocol

from asap_ray.batch import Request
from asap_ray.errors import ConfigError
from asap_ray.scheduler.order import Order, first_come
from asap_ray.scheduler.shares import Cut, Filling, Piece, Share

WAITING_WEIGHT: Final = 4
"""vLLM's balancer sends a prompt to the engine with the least 4 * waiting + running requests."""


class StepQueue(Protocol):
    """Holds prompts until their last piece is taken."""

    def push(self, request: Request) -> None:
        """Append a whole prompt."""

    def take(self) -> list[Share]:
        """Every group's share of the next step. The step before has ended."""

    @property
    def num_ready(self) -> int:
        """Groups that have something to run."""


@dataclass(order=True, slots=True)
class _Prompt:
    """One prompt, and how far it is."""

    key: float
    number: int  # of equal keys the first pushed goes first
    request: Request = field(compare=False)
    group: int | None = field(compare=False, default=None)  # None: nothing of it has run
    start: int = field(compare=False, default=0)

    def into(self, share: Share, cut: Cut) -> bool:
        """Add the next piece to a share; whether one fits."""
        stop = cut.stop(self.start, self.request.num_tokens, share.load)
        if stop == self.start:
            return False
        share.pieces.append(Piece(self.request, self.start, stop))
        share.load += cut.cost(self.start, stop - self.start)
        self.start = stop
        return True

    @property
    def has_more(self) -> bool:
        """Whether tokens are left."""
        return self.start < self.request.num_tokens


class GlobalQueue:
    """One queue: at every step the least loaded group takes the next prompt, until that group has no room for it.

    A prompt under way goes on on its own group, which holds its keys and values; it has its place in the
    order like any other.
    """

    def __init__(self, num_groups: int, cut: Cut, order: Order = first_come) -> None:
        self._num_groups = num_groups
        self._cut = cut
        self._order = order
        self._waiting: list[_Prompt] = []  # a heap
        self._under_way: list[_Prompt] = []
        self._num_pushed = 0

    def push(self, request: Request) -> None:
        """See `StepQueue`."""
        heapq.heappush(self._waiting, _Prompt(self._order(request), self._num_pushed, request))
        self._num_pushed += 1

    @property
    def num_ready(self) -> int:
        """See `StepQueue`."""
        return min(self._num_groups, len({prompt.group for prompt in self._under_way}) + len(self._waiting))

    def take(self) -> list[Share]:
        """See `StepQueue`."""
        shares = [Share() for _ in range(self._num_groups)]
        under_way, self._under_way = sorted(self._under_way, reverse=True), []
        is_full = False
        while under_way or (self._waiting and not is_full):
            if under_way and (is_full or not self._waiting or under_way[-1] < self._waiting[0]):
                prompt = under_way.pop()
                assert prompt.group is not None, "a prompt under way has a group"
                prompt.into(shares[prompt.group], self._cut)
            else:
                prompt = self._waiting[0]
                prompt.group = min(range(self._num_groups), key=lambda group: shares[group].load)
                if not prompt.into(shares[prompt.group], self._cut):
                    is_full = True
                    continue
                heapq.heappop(self._waiting)
            if prompt.has_more:
                self._under_way.append(prompt)
        return shares


class BacklogQueue(GlobalQueue):
    """A global queue whose steps are no longer than needed: each does `part` of the work that waits.

    While little waits, a request that has just missed a step does not miss a long one; while much does, fewer
    steps spend less on what every step costs. A step has between `least` and the cut's own budget.
    """

    def __init__(self, num_groups: int, cut: Filling, least: float, part: float, order: Order = first_come) -> None:
        """Raises ConfigError: `least` or `part` is not positive."""
        if least <= 0 or part <= 0:
            raise ConfigError(f"least={least} and part={part} of a step's work must be positive")
        super().__init__(num_groups, cut, order)
        self._longest = cut
        self._least = least
        self._part = part

    def take(self) -> list[Share]:
        """See `StepQueue`."""
        cost = self._longest.cost
        work = sum(
            cost(prompt.start, prompt.request.num_tokens - prompt.start)
            for prompt in chain(self._under_way, self._waiting)
        )
        wanted = max(self._least, self._part * work / self._num_groups)
        self._cut = replace(self._longest, budget=min(self._longest.budget, wanted))
        return super().take()


class GroupQueues:
    """A queue a group, chosen on arrival by the number of requests there, as vLLM's balancer does.

    vLLM's counts are up to 100 ms old; these are exact. Each group fills its own step in the order of arrival.
    """

    def __init__(self, num_groups: int, cut: Cut) -> None:
        self._cut = cut
        self._queues: list[list[_Prompt]] = [[] for _ in range(num_groups)]
        self._num_running = [0] * num_groups
        self._num_pushed = 0

    def push(self, request: Request) -> None:
        """See `StepQueue`."""
        group = min(range(len(self._queues)), key=self._score)
        self._queues[group].append(_Prompt(request.arrival_s, self._num_pushed, request, group))
        self._num_pushed += 1

    @property
    def num_ready(self) -> int:
        """See `StepQueue`."""
        return sum(map(bool, self._queues))

    def take(self) -> list[Share]:
        """See `StepQueue`."""
        return [self._take(group) for group in range(len(self._queues))]

    def _take(self, group: int) -> Share:
        share, queue = Share(), self._queues[group]
        for prompt in queue:
            if not prompt.into(share, self._cut):
                break
        self._num_running[group] = len(share.pieces)
        self._queues[group] = [prompt for prompt in queue if prompt.has_more]
        return share

    def _score(self, group: int) -> int:
        num_waiting = sum(not prompt.start for prompt in self._queues[group])
        return WAITING_WEIGHT * num_waiting + self._num_running[group]
