"""The doors of virtual devices: batches in, tokens out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set

from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.protocol import NOBODY
from asap_ray.spec import PrefillSpec

Deliver = Callable[[Batch, tuple[Token, ...], Stamps], None]


class VirtualDoor:
    """The door of one DP group. Whichever rank comes first decides; the others follow its log (design, section 5)."""

    def __init__(self, runtime: VirtualRuntime, prefill: PrefillSpec, group: int, deliver: Deliver) -> None:
        self._runtime = runtime
        self._prefill = prefill
        self._deliver = deliver
        self._batches: deque[Batch] = deque()
        self._log: list[Batch | None] = []
        self._filled = runtime.signal(f"a batch for group {group}")

    def put(self, batch: Batch) -> None:
        """Append a batch; the loop takes it at its next turn."""
        self._batches.append(batch)
        self._runtime.wake(self._filled)

    def rank(self, tp_rank: int) -> VirtualRankDoor:
        """`BatchQueue` of one rank."""
        return VirtualRankDoor(self, tp_rank)

    async def decision(self, turn: int, occupied: tuple[Batch, ...]) -> Batch | None:
        """What the ranks of the group admit at their `turn`-th question."""
        while turn == len(self._log):
            if self._batches and self._prefill.may_share(b.num_tokens for b in (self._batches[0], *occupied)):
                self._log.append(self._batches.popleft())
            elif occupied:
                self._log.append(None)
            else:
                await self._runtime.park(self._filled)
        return self._log[turn]

    def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """Rank 0 has the tokens of a batch."""
        self._deliver(batch, tokens, stamps)


class VirtualRankDoor:
    """`BatchQueue` of rank j."""

    def __init__(self, door: VirtualDoor, tp_rank: int) -> None:
        self._door = door
        self._rank = tp_rank
        self._turn = 0

    async def admit(self, occupied: tuple[Batch, ...]) -> Batch | None:
        """See `BatchQueue`."""
        self._turn += 1
        return await self._door.decision(self._turn - 1, occupied)

    def unwanted(self) -> Set[str]:
        """See `BatchQueue`: a pass is all there is of a prompt here."""
        return NOBODY

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """See `BatchQueue`."""
        if self._rank == 0:
            self._door.deliver(batch, tokens, stamps)
