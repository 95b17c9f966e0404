"""What a service needs of its DP groups: the engine's door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from asap_ray.batch import Batch, Stamps, Token
from asap_ray.messages import Pages


class Groups(Protocol):
    """D attention groups behind Ray actors, or their double in a test."""

    @property
    def num_groups(self) -> int:
        """D."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache of each group, once they serve; 0: there is none."""

    def shared_pages(self, group: int) -> tuple[Pages, ...]:
        """Where the KV cache of a group's ranks lies, once they serve."""

    def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """Run a batch: one element a pass, the first tokens first, until every request has a finish_reason."""

    def abort(self, group: int, request_ids: Sequence[str]) -> None:
        """Nobody waits for these any more: a group ends each that it decodes with its next token. Waits for nothing."""

    def missing(self) -> tuple[str, ...]:
        """Devices that are not serving; empty when ready."""

    @property
    def is_recovering(self) -> bool:
        """Whether what is missing is being brought back, so that prompts may wait for it."""

    async def serves(self, group: int) -> bool:
        """Whether a group that failed a batch serves all the same; if not, its owner brings it back."""

    def report(self, group: int, reason: str) -> None:
        """A group does not get on, whatever it says of itself: replace it."""
