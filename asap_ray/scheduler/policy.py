"""The seam between the bookkeeping of a scheduler and its policy: what runs next, and on which DP group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asap_ray.batch import Batch, Request
from asap_ray.errors import RequestError
from asap_ray.spec import PrefillSpec


@dataclass(slots=True)
class Group:
    """One DP group, as a policy sees it."""

    index: int
    is_up: bool = True
    in_flight: list[Batch] = field(default_factory=list)
    num_free: int = 0  # batches it may take now


class Policy(Protocol):
    """Holds what waits and says what runs next. Pure: time is an argument, and nothing here waits."""

    @property
    def num_requests(self) -> int:
        """Prompts of which nothing runs yet."""

    @property
    def num_tokens(self) -> int:
        """Tokens that no batch has yet."""

    def check(self, request: Request) -> None:
        """Refuse with RequestError what no queue could take, or an id that waits."""

    def push(self, request: Request, now: float) -> None:
        """Add a whole prompt that passed `check`."""

    def remove(self, request_id: str) -> bool:
        """Drop what no batch has of a prompt; whether there was anything."""

    def take(self, now: float, groups: Sequence[Group]) -> tuple[Group, Batch] | None:
        """The next batch and its group, which is up and has room; None if nothing can start now."""

    def wake_at(self, now: float, groups: Sequence[Group]) -> float | None:
        """When `take` has something if nothing else happens, -inf if it has now; None if only an event helps."""

    def ended(self, batch: Batch) -> None:
        """A batch ended, well or not, and is not put back."""

    def put_back(self, batch: Batch) -> None:
        """A batch was lost with its group: its prompts start over, before all others."""

    def abandon(self, group: int) -> None:
        """A group was lost: prompts it was to go on with start over, unless `ended` or `put_back` will tell of them."""


def check_length(prefill: PrefillSpec, request: Request) -> None:
    """Refuse a prompt that can never run.

    Raises:
        RequestError: its length is not in 1..max_tokens.
    """
    if not 1 <= request.num_tokens <= prefill.max_tokens:
        raise RequestError(
            f"prompt has {request.num_tokens} tokens; this instance takes 1 to {prefill.max_tokens}",
            param="prompt",
        )
