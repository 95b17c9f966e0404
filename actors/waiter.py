"""A prompt whose client waits, from its first piece's way to a group to its tokens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from asap_ray.batch import Request, Stamps, Token
from asap_ray.errors import AsapError
from asap_ray.kvcache.transfer_params import RemotePrefill

MAX_RUNS: Final = 2
"""A prompt whose group was lost twice is perhaps what kills groups."""


@dataclass(frozen=True, slots=True)
class Ttft:
    """The parts of one time to first token, in seconds (5.3); of a prompt in pieces the sums over its pieces.

    The rest of the total is the way to the group and back, the wait at its door, the other slot's turns, and what
    passed between two pieces.
    """

    queue_s: float  # from arrival until the batch, or that of a long prompt's first piece, is handed to a DP group
    attention_s: float
    dispatch_s: float
    combine_s: float
    total_s: float  # from arrival to the token


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one request; `ttft` and `cached_tokens` come with its first."""

    token: Token
    ttft: Ttft | None = None
    cached_tokens: int = 0  # of the prompt, that needed no computation here
    handed_off: RemotePrefill | None = None  # with its last, if a decode instance is to go on


@dataclass(slots=True)
class Waiter:
    """A client's prompt, and where its tokens go."""

    request: Request
    events: asyncio.Queue[TokenEvent | AsapError]
    hands_off: bool = False  # a decode instance goes on
    handed_s: float | None = None  # when a group was given its first piece
    cached_tokens: int = 0
    stamps: Stamps = field(default_factory=Stamps)  # of the pieces so far
    num_tokens: int = 0  # answered so far
    num_runs: int = 1

    def start_over(self) -> bool:
        """Its group was lost; whether it may run again: once, and only while its client has no token."""
        self.stamps = Stamps()
        self.num_runs += 1
        return self.num_tokens == 0 and self.num_runs <= MAX_RUNS

    @property
    def age_s(self) -> float:
        """Since it arrived."""
        return time.monotonic() - self.request.arrival_s

    @property
    def queue_s(self) -> float:
        """From arrival until a group was given its first piece."""
        assert self.handed_s is not None, "no group has this prompt"
        return self.handed_s - self.request.arrival_s

    def hand_over(self, piece: Request) -> None:
        """A group is given a piece, or all of it."""
        self.cached_tokens = piece.cached_tokens
        if self.handed_s is None:
            self.handed_s = time.monotonic()

    def add(self, stamps: Stamps) -> None:
        """The first pass of a piece, or of all of it, is done."""
        self.stamps.attention_s += stamps.attention_s
        self.stamps.dispatch_s += stamps.dispatch_s
        self.stamps.combine_s += stamps.combine_s

    def event(self, token: Token, *, is_first: bool) -> TokenEvent:
        """What its client hears of a token."""
        self.num_tokens += 1
        return TokenEvent(token, self._ttft(), self.cached_tokens) if is_first else TokenEvent(token)

    def _ttft(self) -> Ttft:
        return Ttft(
            queue_s=self.queue_s,
            attention_s=self.stamps.attention_s,
            dispatch_s=self.stamps.dispatch_s,
            combine_s=self.stamps.combine_s,
            total_s=self.age_s,
        )
