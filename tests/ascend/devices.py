"""One prefill instance whose ranks and devices run the Ascend kernels on the twin, on any buffers."""

# Shapes: S tokens, H hidden, K experts per token.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asap_ray.layout import Layout
from asap_ray.spec import NUM_SLOTS, Combine, RowType
from tests.ascend.twin import Place, Twin, flat
from tests.csrc.world import EPOCH, Tokens, World, bits_of, floats_of

OK, TIMEOUT, CLOSED, CORRUPT, IDLE, INVALID = range(6)
TIMEOUT_CYCLES = 3_000_000
STATUS_INTS = 16
ROW_TYPES = {RowType.FLOAT32: 0, RowType.BFLOAT16: 1, RowType.FLOAT16: 2}
MAX_BLOCKS = 12
ALL_DEVICES = (1 << 31) - 1


class Devices:
    """Attention ranks and MoE devices on the twin; buffers are their own, or those of a host World."""

    def __init__(self, twin: Twin, world: World, *, own_buffers: bool = True, num_blocks: int = 1) -> None:
        prefill = world.instance.prefill
        self.twin, self.world, self.num_blocks = twin, world, num_blocks
        self.layout: Layout = world.layout
        self.row_type, self.combine = prefill.row_type, int(prefill.combine is Combine.PER_EXPERT)
        self.fields = twin.layout(self.layout)
        if own_buffers:
            self.moe = [twin.zeros(self.layout.moe_bytes) for _ in world.moe_buffers]
            self.attention = [[twin.zeros(self.layout.attention_bytes) for _ in g] for g in world.attention_buffers]
        else:
            self.moe = [twin.share(np.frombuffer(buffer, dtype=np.uint8)) for buffer in world.moe_buffers]
            self.attention = [
                [twin.share(np.frombuffer(buffer, dtype=np.uint8)) for buffer in group]
                for group in world.attention_buffers
            ]
        places = world.instance.placed.expert_of_place
        begin = np.searchsorted(sorted(places), np.arange(self.layout.num_experts + 1))
        self.placement = twin.copy(np.concatenate([begin, np.argsort(places, kind="stable")]).astype(np.int32))
        self.moe_table = twin.table(self.moe)
        self.attention_table = twin.table(flat(self.attention))
        self.epochs = [twin.copy(np.full(self.layout.dp_groups, EPOCH, dtype=np.uint64)) for _ in self.moe]
        self.cursors = [twin.copy(np.zeros(16, dtype=np.int32)) for _ in self.moe]
        self.abort = twin.copy(np.zeros(16, dtype=np.int32))
        self.plans: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
        self.statuses: list[NDArray[np.int32]] = []
        self.timeout = TIMEOUT_CYCLES
        self.epoch = EPOCH  # of every rank
        self.clear: set[tuple[int, int]] = set()  # ranks that know what lies in the devices' buffers: their own

    def status(self) -> NDArray[np.int32]:
        """A status for each block of one launch; every launch made here has one, in order."""
        self.statuses.append(self.twin.copy(np.full((MAX_BLOCKS, STATUS_INTS), -1, dtype=np.int32)))
        return self.statuses[-1]

    def run(self, seed: int = 0) -> list[NDArray[np.int32]]:
        """Run what was launched; per launch, the status of each block: code, what, value."""
        self.twin.run(seed)
        statuses, self.statuses = self.statuses, []
        return [status[:, :3] for status in statuses]

    def rank(self, i: int, j: int, num_blocks: int | None = None) -> Place:
        """A rank's device and its only stream."""
        return Place(100 + i * self.layout.tp + j, num_blocks=num_blocks or self.num_blocks)

    def send(self, tokens: Tokens, i: int = 0, j: int = 0, slot: int = 0, layer: int = 1, sequence: int = 1) -> None:
        """Plan and async-dispatch-send."""
        twin = self.twin
        hidden_SH = twin.copy(bits_of(tokens.hidden_SH, self.row_type))
        plan = self.plans.setdefault((i, j, slot), twin.garbage(twin.size("plan_bytes", self.fields)))
        choices = twin.copy(tokens.expert_ids_SK), twin.copy(tokens.weights_SK)
        numbers = len(tokens.hidden_SH), layer, sequence, self.combine
        memory = self.fields, self.placement, plan, *choices, self.status()
        twin.launch("asap_plan", self.rank(i, j, 1), *memory, *numbers)
        memory = self.fields, plan, hidden_SH, self.moe_table, self.abort, self.status()
        clear = ALL_DEVICES if (i, j) in self.clear else 0
        numbers = i, j, slot, self.epoch, self.combine, self.timeout, ALL_DEVICES, 0, clear
        twin.launch("asap_dispatch_send", self.rank(i, j), *memory, *numbers)
        self.clear.add((i, j))

    def come_back(self) -> None:
        """Every rank is another incarnation, of which no device has heard; what the dead sent is where it was."""
        self.epoch += 1
        self.clear.clear()

    def receive(self, num_tokens: int, i: int = 0, j: int = 0, slot: int = 0) -> NDArray[Any]:
        """async-combine-recv; the rows are there once it has run."""
        empty_SH = np.full((num_tokens, self.layout.hidden), 9, dtype=np.float32)
        out_SH = self.twin.copy(bits_of(empty_SH, self.row_type))
        memory = self.fields, self.plans[i, j, slot], self.attention[i][j], out_SH, self.abort, self.status()
        numbers = slot, self.epoch, self.combine, self.timeout, ROW_TYPES[self.row_type]
        self.twin.launch("asap_combine_recv", self.rank(i, j), *memory, *numbers)
        return out_SH

    def take(self, e: int, stream: int = 0) -> tuple[int, NDArray[np.uint8]]:
        """async-dispatch-recv: the number of the launch, and the item."""
        item = self.twin.garbage(self.twin.size("item_bytes", self.fields))
        memory = self.fields, self.moe[e], item, self.epochs[e], self.cursors[e], self.abort, self.status()
        place = Place(e, stream, self.num_blocks)
        return self.twin.launch("asap_dispatch_recv", place, *memory, e, self.combine, self.timeout), item

    def answer(self, e: int, taken: int, item: NDArray[np.uint8], streams: Sequence[int] = (0, 0)) -> None:
        """Experts that scale, then async-combine-send, in streams of their own or one after the other."""
        results = self.twin.garbage(len(item) - self.twin.size("item_rows", self.fields))
        row_type = ROW_TYPES[self.row_type]
        place = Place(e, streams[0], 1, after=taken)
        done = self.twin.launch("test_scale_rows", place, self.fields, item, results, e, row_type)
        memory = self.fields, item, results, self.attention_table, self.epochs[e], self.status()
        place = Place(e, streams[1], self.num_blocks, after=done)
        self.twin.launch("asap_combine_send", place, *memory, e, self.combine, row_type)

    def serve(self, e: int, streams: Sequence[int] = (0, 0, 0)) -> NDArray[np.uint8]:
        """One item from its arrival to its reply."""
        taken, item = self.take(e, streams[0])
        self.answer(e, taken, item, streams[1:])
        return item

    def floats(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Rows as numbers."""
        return floats_of(rows, self.row_type)


def message_bytes(layout: Layout, buffer: NDArray[np.uint8], place: tuple[int, int, int]) -> list[NDArray[np.uint8]]:
    """Header with counts, row indices, weights and rows of message (i, j, slot), as long as its header says."""
    i, j, slot = place
    region = buffer[layout.moe_regions + (i * layout.tp + j) * layout.region_bytes :]
    header = region[layout.region_headers + slot * layout.header_bytes :][: layout.header_bytes]
    num_rows, num_pairs = header.view(np.int32)[5:7]
    pairs = slot * layout.slot_pairs * 4
    rows = region[layout.region_rows + slot * layout.slot_rows * layout.row_bytes :]
    return [
        header,
        region[layout.region_row_idx + pairs :][: num_pairs * 4],
        region[layout.region_weights + pairs :][: num_pairs * 4],
        rows[: num_rows * layout.row_bytes],
    ]


def words(layout: Layout, buffer: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The arrival words of a MoE device, by (group, slot)."""
    count = layout.dp_groups * NUM_SLOTS
    return buffer[layout.moe_bitmaps :][: count * 512].view(np.uint64)[::64]
