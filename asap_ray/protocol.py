"""The seams between the engine and the worlds it runs in.

The loops of `engine/` know only this file. A backend decides whether an await suspends: on host,
Ascend and CUDA it blocks in native code and the coroutine never suspends; in virtual time it does.
Arrays are typed `Any` because each world has its own: torch tensors, or nothing but a length.
"""

# Shapes: S tokens of a batch on this rank, H hidden, K experts per token,
#         R rows on this MoE device (one per token and local expert), E its experts.

from __future__ import annotations

from collections.abc import Coroutine, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol

from asap_ray.batch import Batch, Stamps, Token

NOBODY: Final[frozenset[str]] = frozenset()
"""No request."""


@dataclass(frozen=True, slots=True)
class Routed:
    """What attention hands to dispatch: this rank's rows and where the router sends each."""

    hidden_SH: Any  # float32 or the row type
    expert_ids_SK: Any  # int32, distinct within a row
    weights_SK: Any  # float32


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One layer of one batch on one MoE device: rows already grouped by expert."""

    dp_group: int
    slot: int
    layer: int  # data, not code: known only on arrival (3.4.2)
    num_rows: int  # R
    num_rows_E: Any  # int32; the rows of expert x are consecutive
    rows_RH: Any
    ticket: Any  # the backend's own; goes back unchanged to combine_send
    found_s: float  # when all of it was there, on the runtime's clock


@dataclass(frozen=True, slots=True)
class Finished:
    """End of a pass: its tokens, and the state of the next decode step if a request wants more."""

    tokens: tuple[Token, ...]
    next_state: Any | None


class AttentionComm(Protocol):
    """The attention side of the primitives (3.2), for one rank (i, j)."""

    async def dispatch_send(self, slot: int, layer: int, routed: Routed) -> None:
        """Write each row once to every MoE device that owns one of its experts; set this rank's bits."""

    async def combine_recv(self, slot: int) -> Any:
        """Wait for every device that owes results for the slot; the sum over experts, shape [S, H]."""


class MoEComm(Protocol):
    """The MoE side of the primitives (3.2), for one device e."""

    async def dispatch_recv(self) -> WorkItem:
        """Wait for a (group, slot) with all T bits set; take its rows and clear the word (the credit)."""

    async def combine_send(self, work: WorkItem, results_RH: Any) -> None:
        """Write results to the ranks that sent rows and set bit e. Never waits (ADR 0001)."""


class AttentionStage(Protocol):
    """Everything of the model but the routed experts, for one rank."""

    num_layers: int  # MoE layers

    async def start(self, batch: Batch) -> Any:
        """The state of a new pass over the batch's prompts; lets go of what the batch says to forget."""

    async def attend(self, state: Any, layer: int, expert_out: Any | None) -> Routed:
        """All work up to the router of MoE layer `layer`; `expert_out` is the layer before's, None at first."""

    async def finish(self, state: Any, expert_out: Any, unwanted: Set[str] = NOBODY) -> Finished:
        """All work after the last MoE layer: logits, one token a request.

        A request that rank 0 is told is `unwanted` ends with this token, on every rank: its `finish_reason` is "abort".
        """


class MoEStage(Protocol):
    """The routed experts of every layer on one device."""

    async def super_kernel(self, layer: int, rows_RH: Any, num_rows_E: Any) -> Any:
        """Grouped GEMM, SwiGLU, grouped GEMM with the weights of `layer` (3.4.2); unweighted, shape [R, H]."""


class BatchQueue(Protocol):
    """A DP group's door: batches in, tokens out. Every rank of a group sees the same answers."""

    async def admit(self, occupied: tuple[Batch, ...]) -> Batch | None:
        """The next batch that may run beside `occupied`; None if there is none now.

        With nothing occupied it waits for one. Raises Closed when the group is stopping.
        """

    def unwanted(self) -> Set[str]:
        """Requests whose next tokens nobody waits for; what rank 0's queue says counts, the others' say nothing."""

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """Hand tokens to whoever sent the batch."""


class LockstepMoEComm(Protocol):
    """The MoE side of a synchronous system: barriers before and after each MoE layer (5.1)."""

    async def dispatch_recv(self, slot: int) -> WorkItem:
        """Wait for the rows of every rank's micro-batch `slot`: one item, of all groups."""

    async def combine_send(self, work: WorkItem, results_RH: Any) -> None:
        """Write results back to all ranks. Never waits."""


class StepQueue(Protocol):
    """The door of one rank of a synchronous system: its share of each global step in, tokens out."""

    async def step(self) -> tuple[Batch, ...]:
        """This rank's micro-batches of the next step, as many as every other rank has; those without work are empty.

        Waits while nobody has work. Raises Closed when the system is stopping.
        """

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """Hand tokens to whoever sent the batch."""


class Collective(Protocol):
    """Tensor parallelism inside one DP group; never spans two groups."""

    rank: int
    size: int

    def all_gather(self, rows: Any) -> Any:
        """Concatenate every rank's rows along dimension 0, in rank order. All ranks pass equal shapes."""

    def reduce_scatter(self, rows: Any) -> Any:
        """Sum over ranks; rank j keeps the j-th equal part of dimension 0 (a multiple of `size`)."""

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's message, on every rank."""


class Queue(Protocol):
    """A bounded queue between two streams of one device."""

    async def put(self, value: Any) -> None:
        """Wait for room, then append."""

    async def get(self) -> Any:
        """Wait for a value, then take it."""


class Runtime(Protocol):
    """How streams run and time passes: threads and the clock, or tasks and virtual time."""

    def queue(self, capacity: int) -> Queue:
        """A bounded queue joining two streams."""

    async def gather(self, *streams: Coroutine[Any, Any, None]) -> None:
        """Run streams side by side; the first error stops the others and is raised."""

    def now(self) -> float:
        """Seconds; only differences mean anything."""
