"""The seam between the bookkeeping of a scheduler and its policy: what runs next, and on which DP group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asap_ray.batch import Batch, Request


def as_it_is(request: Request) -> Request:
    """The prompt itself: nothing of it is in a cache."""
    return request


@dataclass(slots=True)
class Group:
    """One DP group, as a policy sees it."""

    index: int
    is_up: bool = True
    in_flight: list[Batch] = field(default_factory=list)
    num_free: int = 0  # batches it may take now
    seen: Callable[[Request], Request | None] = as_it_is
    """A whole prompt -> what this group would have to compute of it; None: it is left for one that has more of it."""
    busy_since_s: float = 0.0  # when it last began to work or ended a batch
    has_blocks: bool = False  # for keys and values, reserved beforehand: a batch needs no bound of its own

    def kv_tokens(self, piece: Request) -> int:
        """Tokens whose keys and values a batch has to find room for, because nobody reserved it."""
        return 0 if self.has_blocks else piece.kv_tokens


class Policy(Protocol):
    """Holds what waits and says what runs next. Pure: time is an argument, and nothing here waits."""

    @property
    def num_requests(self) -> int:
        """Prompts of which nothing runs yet."""

    @property
    def num_tokens(self) -> int:
        """Tokens that no batch has yet."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt it can run."""

    def has(self, request_id: str) -> bool:
        """Whether a prompt of this id waits, or has pieces that do."""

    def tokens_before(self, request: Request) -> int:
        """Tokens that no batch has yet and that would go before a prompt, were it pushed now."""

    def push(self, request: Request, now: float) -> None:
        """Add a whole prompt, no longer than the longest and of an id that is not here."""

    def remove(self, request_id: str) -> bool:
        """Drop what no batch has of a prompt; whether there was anything."""

    def take(self, now: float, groups: Sequence[Group]) -> tuple[Group, Batch] | None:
        """The next batch and its group, which is up and has room; None if nothing can start now."""

    def wake_at(self, now: float, groups: Sequence[Group]) -> float | None:
        """When `take` has something if nothing else happens, -inf if it has now; None if only an event helps."""

    def ended(self, batch: Batch) -> None:
        """A batch ended, well or not, and is not put back."""

    def put_back(self, prompts: Sequence[Request]) -> None:
        """The whole prompts of a batch that was lost, or of a part of it that found no room: they start over, first."""

    def abandon(self, group: int) -> None:
        """A group was lost: prompts it was to go on with start over, unless `ended` or `put_back` will tell of them."""
