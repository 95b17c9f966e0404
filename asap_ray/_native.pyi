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
        dp_group: int,
        tp_rank: int,
        epoch: int,
        row_type: str,
        combine: str,
    ) -> None:
        """`moe_buffers` in the order of e; `epoch` is the incarnation of the group, the same on its ranks."""

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
