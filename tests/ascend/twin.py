"""The kernels of csrc/ascend on their CPU twin: building, memory, launches."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asap_ray.layout import Layout

ROOT = Path(__file__).parents[2]
TWIN = ROOT / "csrc/ascend/twin"
KERNELS = ROOT / "csrc/ascend/kernels"
FAKE = ROOT / "tests/ascend/fakecann"
FLAGS = ["-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc/include'}"]
MAX_STEPS = 4_000_000
ALIGNMENT = 512


class Wrong(Exception):
    """What the twin says of a kernel that does the forbidden or never ends."""


def compiled(source: Path, target: Path, kernels: Path, *flags: str) -> Path:
    """An object file, made again only when something under csrc or one of the kernels is newer."""
    sources = [*ROOT.glob("csrc/ascend/*/*"), *ROOT.glob("csrc/include/*/*"), *kernels.glob("*")]
    newest = max(path.stat().st_mtime for path in sources)
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", *FLAGS, *flags, "-c", str(source), "-o", str(target)], check=True)
    return target


def build(kernels: Path = KERNELS, name: str = "kernels") -> Path:
    """The library with the kernels of one folder; everything else is compiled once."""
    folder = ROOT / "build/ascend"
    parts = ["fiber", "memory", "core", "machine", "layout_places"]
    objects = [compiled(TWIN / f"{part}.cpp", folder / f"{part}.o", KERNELS) for part in parts]
    objects.append(compiled(TWIN / "library.cpp", folder / f"{name}.o", kernels, f"-I{TWIN}", f"-I{kernels}"))
    library = folder / f"{name}.so"
    subprocess.run(["g++", "-shared", *map(str, objects), "-o", str(library)], check=True)
    return library


@functools.cache
def fake_runtime() -> Path:
    """A libascendcl whose devices are this host's memory and the twin."""
    sources = [FAKE / name for name in ("fake_acl.cpp", "fake_memory.cpp", "fake_torch.cpp")]
    return shared_library(ROOT / "build/ascend/toolkit/lib64/libascendcl.so", sources)


@functools.cache
def kernels_folder() -> Path:
    """What `make ascend` makes of the kernels, made for the twin."""
    folder = ROOT / "build/ascend/made"
    folder.mkdir(parents=True, exist_ok=True)
    library = build()
    for name in ("asap_kernels.o", "libasap_tiling.so"):
        replace(folder / name, library.read_bytes())
    return folder


def shared_library(target: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compiled when a source, or a header beside it, is newer."""
    newest = max(path.stat().st_mtime for path in (*sources, *sources[0].parent.glob("*.hpp")))
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", *FLAGS, *flags, "-shared", *map(str, sources), "-o", str(target)], check=True)
    return target


def replace(target: Path, content: bytes) -> None:
    """Write a file as a new one: whoever has the old one mapped keeps it."""
    if target.exists() and target.read_bytes() == content:
        return
    target.unlink(missing_ok=True)
    target.write_bytes(content)


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_int32),
        ("after", ctypes.c_int32),
        ("num_blocks", ctypes.c_int32),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("num_bytes", ctypes.c_uint64))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a launch runs: device, stream of the device, number of blocks, and the launch it waits for."""

    device: int
    stream: int = 0
    num_blocks: int = 1
    after: int = -1


class Twin:
    """Devices with their memory. Launches of one stream run in order, streams at the same time."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.asap_twin_run.restype = ctypes.c_char_p
        private = "plan_bytes", "item_bytes", "item_rows"
        for name in (*private, "super_kernel_bytes", "super_kernel_int8_bytes", "system_bytes"):
            getattr(self.library, f"asap_{name}").restype = ctypes.c_int64
        self.library.asap_layout_place.restype = ctypes.c_int64
        self._memory: list[NDArray[Any]] = []
        self._launches: list[_Launch] = []
        self._keep: list[Any] = []

    def share(self, array: NDArray[Any]) -> NDArray[Any]:
        """Let kernels touch this memory."""
        self._memory.append(array)
        return array

    def zeros(self, num_bytes: int) -> NDArray[np.uint8]:
        """Device memory, aligned and shared."""
        raw = np.zeros(num_bytes + 2 * ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return self.share(raw[start : start + -(-num_bytes // ALIGNMENT) * ALIGNMENT])

    def garbage(self, num_bytes: int) -> NDArray[np.uint8]:
        """Device memory in which somebody has been before."""
        memory = self.zeros(num_bytes)
        memory[:] = 0xA5
        return memory

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array in device memory, with its type and shape."""
        memory = self.zeros(max(array.nbytes, 1))[: array.nbytes].view(array.dtype).reshape(array.shape)
        memory[...] = array
        return memory

    def table(self, arrays: Iterable[NDArray[Any]]) -> NDArray[np.uint64]:
        """Their addresses, in device memory."""
        return self.copy(np.array([array.ctypes.data for array in arrays], dtype=np.uint64))

    def layout(self, layout: Layout) -> NDArray[np.int64]:
        """A Layout as the kernels read it."""
        return self.copy(np.array(dataclasses.astuple(layout), dtype=np.int64))

    def size(self, what: str, *args: NDArray[Any] | int) -> int:
        """Bytes of private memory, for example size("plan_bytes", layout)."""
        values = [ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in args]
        return int(getattr(self.library, f"asap_{what}")(*values))

    def launch(self, kernel: str, place: Place, *args: NDArray[Any] | int) -> int:
        """Put a kernel in its stream; arrays go as addresses. Returns its number."""
        values = [ctypes.c_int64(a if isinstance(a, int) else a.ctypes.data) for a in args]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._keep += [values, pointers, args]
        launch = _Launch(kernel.encode(), place.device, place.stream, place.after, place.num_blocks, pointers)
        self._launches.append(launch)
        return len(self._launches) - 1

    def run(self, seed: int = 0, max_steps: int = MAX_STEPS) -> None:
        """Until all that was launched is done. Raises Wrong."""
        launches = (_Launch * len(self._launches))(*self._launches)
        memory = (_Memory * len(self._memory))(*((m.ctypes.data, m.nbytes) for m in self._memory))
        sizes = [ctypes.c_uint64(seed), ctypes.c_uint64(max_steps)]
        failure = self.library.asap_twin_run(launches, len(launches), memory, len(memory), *sizes)
        self._launches, self._keep = [], []
        if failure:
            raise Wrong(failure.decode())


def flat(arrays: Iterable[Iterable[NDArray[Any]]]) -> list[NDArray[Any]]:
    """One list of them all."""
    return list(itertools.chain.from_iterable(arrays))
