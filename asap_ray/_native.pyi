"""Shared buffers, the four asynchronous primitives (3.2) and passes over rows on the host; written in csrc/.

Arrays cross as buffers: float32, or uint16 standing for the 16-bit row type. All are C-contiguous.
The GIL is released while a call waits or copies.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Rows: TypeAlias = NDArray[Any]

class Layout:
    """The values of `asap_ray.layout.Layout`: `Layout(**dataclasses.asdict(layout))`."""

    def __init__(self, **fields: int) -> None: ...

class SharedBuffer:
    """Memory without a name in any file system, gone with its last process; `memoryview(buffer)` shows it."""

    @staticmethod
    def create(name: str, num_bytes: int) -> SharedBuffer:
        """Allocate zeros, all pages present; `name` shows in /proc/PID/maps as memfd:asap-NAME.

        Raises:
            OSError: the system refuses.
        """

    @staticmethod
    def create_sparse(name: str, num_bytes: int) -> SharedBuffer:
        """The same, but pages come when they are written.

        Raises:
            OSError: the system refuses.
        """

    @staticmethod
    def open(pid: int, fd: int, num_bytes: int) -> SharedBuffer:
        """Map the buffer of a process of the same user.

        Raises:
            OSError: the process or its descriptor is gone.
            ValueError: it is no such buffer, or of another size.
        """

    @property
    def pid(self) -> int:
        """This process: where others may open the buffer."""

    @property
    def fd(self) -> int:
        """Its descriptor in this process."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def address(self) -> int:
        """Of its first byte in this process."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class AttentionComm:
    """The attention side, for rank j of group i. One thread at a time.

    `abort`, `be_patient` and `replace_device` are for any thread.
    """

    def __init__(
        self,
        layout: Layout,
        buffer: SharedBuffer,
        moe_buffers: Sequence[SharedBuffer],
        expert_of_place: Sequence[int],
        dp_group: int,
        tp_rank: int,
        epoch: int,
        row_type: str,
        combine: str,
    ) -> None:
        """`moe_buffers` in the order of e; `epoch` is the incarnation of the group, the same on its ranks.

        An expert in several places is sent to one of them: on a device that gets the row anyway, else, and among
        several of those, on the device with the fewest (row, expert) pairs of the message so far.
        """

    def async_dispatch_send(
        self,
        slot: int,
        layer: int,
        hidden: _Rows,
        expert_ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        timeout_s: float,
    ) -> None:
        """Write hidden [S, H], routed by expert_ids and weights [S, K], to all MoE devices; waits only for room.

        More than `slot_rows` tokens go in slot 0 alone and use the room of both slots.

        Raises:
            Overflow: S exceeds the slot; nothing was written.
            ValueError: a bad argument, an expert out of range or twice in a row, a slot still in flight.
            PeerTimeout: a device had no room in time.
            Closed: after `abort`.
        """

    def async_combine_recv(self, slot: int, out: _Rows, timeout_s: float) -> None:
        """Wait for the results of the slot's message; their sums, weighted, go to out [S, H].

        Raises:
            PeerTimeout: a device did not reply in time; may be called again.
            CorruptMessage: a reply does not fit the message.
            ValueError: a bad argument, or nothing in flight.
            Closed: after `abort`.
        """

    def be_patient(self, seconds: float) -> None:
        """A MoE device is being replaced: for so long, or until it is, no wait's deadline passes."""

    def replace_device(self, moe_device: int, buffer: SharedBuffer) -> None:
        """MoE device e is dead and `buffer` is its successor's: send again what it still owes. Never waits.

        Raises:
            ValueError: no such device, or the buffer is too small.
        """

    @property
    def backpressure_s(self) -> list[float]:
        """Seconds waited for room on each MoE device; a wait for several is divided among them. For any thread."""

    def abort(self) -> None:
        """Every wait, present or later, raises Closed within 60 ms."""

class Item:
    """One layer of one batch on one MoE device. Its memory is used again once it and its arrays are gone."""

    @property
    def dp_group(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def found_s(self) -> float:
        """When its message was found complete, on the clock of `time.monotonic`."""

    @property
    def num_tokens(self) -> int:
        """Rows that were sent, however many of the device's experts each is for."""

    @property
    def num_rows(self) -> int:
        """R: (row, expert) pairs."""

    @property
    def num_rows_E(self) -> NDArray[np.int32]:  # noqa: N802
        """Rows per local expert; they sum to R."""

    @property
    def rows(self) -> _Rows:
        """[R, H], grouped by local expert; float32, or uint16 standing for the 16-bit row type."""

def route(layout: Layout, expert_of_place: Sequence[int], expert_ids: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Rows of each MoE device and (row, expert) pairs of each place, were expert_ids [S, K] those of a message.

    Raises:
        ValueError: as of `AttentionComm` and its `async_dispatch_send`.
    """

class MoEComm:
    """The MoE side, for device e. One thread may receive, one compute, one send (3.4.1)."""

    def __init__(
        self,
        layout: Layout,
        buffer: SharedBuffer,
        attention_buffers: Sequence[Sequence[SharedBuffer]],
        moe_device: int,
        epochs: Sequence[int],
        row_type: str,
        compute_type: str,
        combine: str,
    ) -> None:
        """`attention_buffers` by group and rank, `epochs` by group; `compute_type` is float32 or the row type."""

    def async_dispatch_recv(
        self, timeout_s: float, pick: Literal["round_robin", "lowest_first"] = "round_robin"
    ) -> Item:
        """Wait for a message all T ranks of a group have sent; take its rows and give the credit.

        An idle device waits for ever: the clock runs only while a message is incomplete.

        Raises:
            PeerTimeout: the rest of a message did not come.
            CorruptMessage: a header contradicts the layout; that message is dropped.
            Closed: after `abort`.
        """

    def async_combine_send(self, item: Item, results: _Rows) -> None:
        """Send unweighted results [R, H], one for each of the item's rows. Never waits."""

    def replace_group(self, dp_group: int, buffers: Sequence[SharedBuffer], epoch: int) -> None:
        """The group is a new incarnation from now on, with a buffer a rank; what the old one left is dropped.

        Raises:
            ValueError: no such group, not T buffers, or one is too small.
        """

    def abort(self) -> None:
        """Every wait, present or later, raises Closed within 60 ms."""

class MoEMirror:
    """What rank j of group i writes to instead of a MoE device's buffer on another host."""

    def __init__(self, layout: Layout, buffer: SharedBuffer, dp_group: int, tp_rank: int) -> None: ...
    def take(self, slot: int) -> tuple[bytes, list[tuple[int, int]]] | None:
        """The slot's message, once: its header, and (offset, num_bytes) of the ranges to carry before it."""

    def credit(self, slot: int) -> None:
        """The MoE device has read the slot's message."""

    @property
    def span(self) -> tuple[int, int]:
        """Offset and size of what all ranges lie in: what has to be registered."""

    @property
    def bell(self) -> tuple[SharedBuffer, int]:
        """Rings when there is a message."""

class AttentionMirror:
    """What MoE device e writes to instead of an attention rank's buffer on another host."""

    def __init__(self, layout: Layout, buffer: SharedBuffer, moe_device: int) -> None: ...
    def take(self, slot: int) -> tuple[bytes, list[tuple[int, int]]] | None:
        """The reply in the slot, once: its header, and (offset, num_bytes) of the ranges to carry before it."""

    @property
    def span(self) -> tuple[int, int]:
        """Offset and size of what all ranges lie in: what has to be registered."""

    @property
    def bell(self) -> tuple[SharedBuffer, int]:
        """Rings when there is a reply."""

class MoEInbox:
    """Where a MoE device's process puts what came from ranks on other hosts."""

    def __init__(self, layout: Layout, buffer: SharedBuffer) -> None: ...
    def put(self, dp_group: int, tp_rank: int, slot: int, header: bytes) -> bool:
        """The ranges of a message are here. False, and nothing done, while one of a dead predecessor is there.

        Raises:
            ValueError: no such rank or slot, or a header of another size.
        """

    def is_read(self, dp_group: int, tp_rank: int, slot: int) -> bool:
        """Whether the message that was put there has been read."""

    @property
    def bell(self) -> tuple[SharedBuffer, int]:
        """Rings when messages have been read."""

class AttentionInbox:
    """Where an attention rank's process puts what came from MoE devices on other hosts."""

    def __init__(self, layout: Layout, buffer: SharedBuffer) -> None: ...
    def put(self, slot: int, moe_device: int, header: bytes) -> None:
        """The ranges of a reply are here.

        Raises:
            ValueError: no such slot or device, or a header of another size.
        """

class Watch:
    """Doorbells, for a thread that has other work beside waiting for them."""

    def __init__(self, bells: Sequence[tuple[SharedBuffer, int]]) -> None: ...
    def wait(self, timeout_s: float) -> None:
        """Sleep until one has rung since the last call, at most so long."""

def swiglu(out: _Rows, gate_up: _Rows, row_type: str) -> None:
    """out [R, I] = silu(gate) * up, the halves of gate_up [R, 2 I].

    Raises:
        ValueError: shapes or types do not fit.
    """

def rms_norm(out: _Rows, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, row_type: str) -> None:
    """out [S, H] = x / rms(x) * weight, computed in float32.

    Raises:
        ValueError: shapes or types do not fit.
    """

def norm_and_rotate(
    qkv: _Rows,
    query_norm: NDArray[np.float32],
    key_norm: NDArray[np.float32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    num_queries: int,
    num_keys: int,
    eps: float,
    row_type: str,
) -> None:
    """In place: the query and key heads of qkv [S, (num_queries + 2 num_keys) D], normalised and turned.

    `query_norm` and `key_norm` are [D], `cos` and `sin` [S, D / 2]: pairs are (d, d + D / 2).

    Raises:
        ValueError: shapes or types do not fit.
    """

SHAREABLE: int
"""Operations of `attend`, `multiply` and `multiply_swiglu` from which on threads share them."""

def team_of(num_threads: int) -> int:
    """How many threads do a call of so many operations: one where no OpenMP runtime is in the process."""

def attend(
    out: NDArray[np.float32],
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    scale: float,
    num_threads: int,
) -> None:
    """out [n, N, V] = causal softmax attention of query [N, n, D], the last n of m tokens.

    `key` [G, m, D] and `value` [G, m, V] are each shared by N / G consecutive heads. Strides are free but that of a
    vector's numbers. Scores are multiplied by `scale`; no matrix of all scores exists.

    Raises:
        ValueError: shapes or types do not fit.
    """

def multiply(out: NDArray[np.float32], x: NDArray[np.float32], panels: NDArray[np.float32], num_threads: int) -> None:
    """out [S, B] = x [S, A] times a matrix in panels [P, A, 32]: its columns in order, zeros beyond the last.

    Raises:
        ValueError: shapes or types do not fit.
    """

def multiply_swiglu(
    out: NDArray[np.float32],
    x: NDArray[np.float32],
    num_rows: NDArray[np.int32],
    gate_up: NDArray[np.float32],
    down: NDArray[np.float32],
    num_threads: int,
) -> None:
    """out [R, H] = (silu(x gate) * (x up)) down of each expert's consecutive rows of x [R, H].

    `num_rows` [E] sums to R. A panel of `gate_up` [E, P, H, 32] has sixteen columns of the gate, then those of up
    that they meet; those of `down` [E, P, I, 32] are as in `multiply`.

    Raises:
        ValueError: shapes or types do not fit.
    """

class ascend:  # noqa: N801
    """The submodule `_native.ascend`: the same on Ascend dies, through the runtime of CANN (csrc/ascend/host).

    Everything here raises OSError when the runtime refuses a call; its text has the call and the reason.
    """

    @staticmethod
    def num_devices(library: str) -> int:
        """How many devices the runtime `library` sees."""

    @staticmethod
    def private_memory(layout: Layout, intermediate: int, element_bytes: int) -> dict[str, int]:
        """Bytes of a plan and an item, where an item's rows are, and a block's workspace in the super kernel."""

    class Die:
        """One device: its runtime, and the kernels of a folder."""

        def __init__(self, library: str, kernels: str, device: int) -> None: ...
        def copy(self, to: int, from_: int, num_bytes: int) -> None:
            """From one address of the die to another."""

        @property
        def cores(self) -> tuple[int, int]:
            """Vector and cube cores."""

    class SharedBuffer:
        """Device memory that peers open by its key."""

        @staticmethod
        def create(
            die: ascend.Die, num_bytes: int, reach: Literal["server", "supernode"] = "server"
        ) -> ascend.SharedBuffer:
            """Allocate zeros; `reach` says who may open them."""

        @staticmethod
        def open(die: ascend.Die, key: bytes, num_bytes: int) -> ascend.SharedBuffer: ...
        @property
        def key(self) -> bytes: ...
        @property
        def address(self) -> int: ...
        @property
        def num_bytes(self) -> int: ...

    class AttentionComm:
        """As `_native.AttentionComm`; the calls that end in `_on_die` take addresses of device memory.

        Rows that were sent `_on_die` stay unchanged until the slot's results have been received.
        """

        def __init__(
            self,
            die: ascend.Die,
            layout: Layout,
            buffer: ascend.SharedBuffer,
            moe_buffers: Sequence[ascend.SharedBuffer],
            expert_of_place: Sequence[int],
            dp_group: int,
            tp_rank: int,
            epoch: int,
            row_type: str,
            combine: str,
        ) -> None: ...
        def async_dispatch_send(
            self,
            slot: int,
            layer: int,
            hidden: _Rows,
            expert_ids: NDArray[np.int32],
            weights: NDArray[np.float32],
            timeout_s: float,
        ) -> None: ...
        def async_dispatch_send_on_die(
            self, slot: int, layer: int, num_tokens: int, hidden: int, expert_ids: int, weights: int, timeout_s: float
        ) -> None: ...
        def async_combine_recv(self, slot: int, out: _Rows, timeout_s: float) -> None: ...
        def async_combine_recv_on_die(self, slot: int, out: int, timeout_s: float) -> None: ...
        def replace_device(self, moe_device: int, buffer: ascend.SharedBuffer) -> None: ...
        def be_patient(self, seconds: float) -> None: ...
        @property
        def backpressure_s(self) -> list[float]: ...
        def abort(self) -> None: ...

    class Item:
        """As `_native.Item`; the rows are on the die, `rows` copies them."""

        @property
        def dp_group(self) -> int: ...
        @property
        def slot(self) -> int: ...
        @property
        def layer(self) -> int: ...
        @property
        def sequence(self) -> int: ...
        @property
        def num_rows(self) -> int: ...
        @property
        def num_tokens(self) -> int: ...
        @property
        def found_s(self) -> float: ...
        @property
        def rows_at(self) -> int: ...
        @property
        def results_at(self) -> int: ...
        def __len__(self) -> int: ...
        @property
        def num_rows_E(self) -> NDArray[np.int32]: ...  # noqa: N802
        @property
        def rows(self) -> _Rows: ...

    class MoEComm:
        """As `_native.MoEComm`."""

        def __init__(
            self,
            die: ascend.Die,
            layout: Layout,
            buffer: ascend.SharedBuffer,
            attention_buffers: Sequence[Sequence[ascend.SharedBuffer]],
            moe_device: int,
            epochs: Sequence[int],
            row_type: str,
            combine: str,
        ) -> None: ...
        def async_dispatch_recv(self, timeout_s: float) -> ascend.Item: ...
        def async_combine_send(self, item: ascend.Item, results: _Rows) -> None: ...
        def async_combine_send_on_die(self, item: ascend.Item, results: int) -> None: ...
        def replace_group(self, dp_group: int, buffers: Sequence[ascend.SharedBuffer], epoch: int) -> None: ...
        def abort(self) -> None: ...

    class SuperKernel:
        """The experts of one device on its die (3.4.2): weights [L, E, 2 I, H] and [L, E, H, I] in the rows' type.

        With scales of their outputs, [L, E, 2 I] and [L, E, H], the weights are int8 (W8A8).
        """

        def __init__(
            self,
            die: ascend.Die,
            layout: Layout,
            moe_device: int,
            row_type: str,
            gate_up: _Rows | NDArray[np.int8],
            down: _Rows | NDArray[np.int8],
            gate_up_scale: NDArray[np.float32] | None = None,
            down_scale: NDArray[np.float32] | None = None,
        ) -> None: ...
        def run(self, item: ascend.Item, results: int) -> None:
            """Unweighted results of the item's rows, to an address on the die, such as its own `results_at`."""
