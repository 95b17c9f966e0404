"""Memory for pages that another process of the same host and user can map; it costs what is touched."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_PREFIX: Final = "asap-"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PageMemory:
    """Bytes without a name in any file system, gone with the last process that maps them.

    Like the communication buffers, but pages appear as they are written: a cache that is not full takes no room.
    """

    def __init__(self, fd: int, num_bytes: int) -> None:
        """Map what `create` or `open` has opened; `fd` is this object's from now on."""
        weakref.finalize(self, os.close, fd)
        self.pid = os.getpid()
        self.fd = fd
        self.num_bytes = num_bytes
        self._mapping = mmap.mmap(fd, num_bytes)
        self._mapping.madvise(mmap.MADV_HUGEPAGE)

    @property
    def bytes(self) -> torch.Tensor:
        """All of it, uint8; it stays mapped as long as a tensor shows it."""
        import torch  # noqa: PLC0415 - a frontend, which maps pages for NIXL to register, does without

        return torch.frombuffer(self._mapping, dtype=torch.uint8)

    @property
    def address(self) -> int:
        """Where it is in this process, as long as this object lives."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    @classmethod
    def create(cls, name: str, num_bytes: int) -> PageMemory:
        """Zeros; `name` shows in /proc/PID/maps as memfd:asap-NAME.

        Raises:
            OSError: the system refuses.
        """
        fd = os.memfd_create(f"{_PREFIX}{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # a reader must not be able to pull it from under the rank
        return cls(fd, num_bytes)

    @classmethod
    def open(cls, pid: int, fd: int, num_bytes: int) -> PageMemory:
        """The memory of another process of this host and user.

        Raises:
            OSError: the process or its descriptor is gone.
            ValueError: it is no such memory, or of another size.
        """
        path = f"/proc/{pid}/fd/{fd}"
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        found = str(Path(f"/proc/self/fd/{opened}").readlink()), os.fstat(opened).st_size
        if not found[0].startswith(f"/memfd:{_PREFIX}") or found[1] != num_bytes:
            os.close(opened)
            raise ValueError(f"{path} is {found[0]} of {found[1]} bytes, not pages of {num_bytes}")
        return cls(opened, num_bytes)
