"""Seeded bugs of the kernels: what to change where. Each is something that has gone wrong on real devices."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from tests.ascend.twin import KERNELS, ROOT


@dataclasses.dataclass(frozen=True)
class Bug:
    """One change of one file; `old` occurs there exactly once."""

    file: str
    old: str
    new: str = ""

    def planted(self, name: str) -> Path:
        """A folder with the kernels and this bug."""
        folder = ROOT / "build/ascend/bugs" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(KERNELS, folder)
        text = (folder / self.file).read_text()
        assert text.count(self.old) == 1, (self.file, self.old)
        (folder / self.file).write_text(text.replace(self.old, self.new))
        return folder


BUGS = {
    "bit before payload": Bug("sync.h", "    PipeBarrier<PIPE_MTE3>();  // payload before bit\n"),
    "bit not atomic": Bug("sync.h", "    SetAtomicAdd<int32_t>();\n"),
    "atomic mode left on": Bug("sync.h", "    DisableDmaAtomic();\n"),
    "flag word not yet written": Bug(
        "sync.h",
        "    value.SetValue(0, delta);\n    order<HardEvent::S_MTE3>();\n",
        "    value.SetValue(0, delta);\n",
    ),
    "poll through the cache": Bug(
        "sync.h",
        "return ReadGmByPassDCache<T>(reinterpret_cast<__gm__ T*>(address));",
        "return array<T>(address).GetValue(0);",
    ),
    "cache not cleaned": Bug(
        "sync.h",
        "  status.SetValue(2, value);\n  clean_cache(statuses);\n",
        "  status.SetValue(2, value);\n",
    ),
    "buffer sent before it is full": Bug("rows.h", "    WaitFlag<HardEvent::MTE2_MTE3>(b);  // the buffer is full\n"),
    "one buffer for two": Bug("rows.h", "buffers_[b].template", "buffers_[0].template"),
    "flags never drained": Bug("rows.h", "    for (int32_t b = 0; b < 2; ++b) WaitFlag<HardEvent::MTE3_MTE2>(b);\n"),
    "row summed before it is there": Bug(
        "rows.h",
        "DataCopyPadExtParams<float>{});\n    order<HardEvent::MTE2_V>();\n",
        "DataCopyPadExtParams<float>{});\n",
    ),
    "credit before the rows are read": Bug("dispatch_recv.h", "    meet();  // rows before credit\n"),
    "credit by one block for all": Bug(
        "sync.h", "  PipeBarrier<PIPE_ALL>();\n  SyncAll();\n", "  PipeBarrier<PIPE_ALL>();\n"
    ),
    "indices checked before they are there": Bug(
        "dispatch_recv.h", "      PipeBarrier<PIPE_ALL>();  // copied before checked\n"
    ),
    "header before payload of other blocks": Bug("combine_send.h", "    meet();  // payload before header\n"),
    "wrong stride": Bug(
        "dispatch_recv.h",
        "from + part.row_idx.GetValue(pair) * l_.row_bytes",
        "from + part.row_idx.GetValue(pair) * l_.hidden",
    ),
    "bits of a rank missing": Bug("dispatch_recv.h", "if (bits == all_bits()) {", "if (bits != 0) {"),
    "room beside a dead group's solo message": Bug(
        "dispatch_send.h", "const bool was_clear = (call_.clear & 1 << e) != 0;", "const bool was_clear = e >= 0;"
    ),
    "replies not awaited": Bug("combine_recv.h", "    if (GetBlockIdx() == 0) await_replies();\n"),
}
