"""Which processes can open each other's memory."""

from __future__ import annotations

import functools
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


@functools.cache
def node_name() -> str:
    """Of this process's node: of two processes with the same name each finds the other in /proc.

    The host's name alone would not do: two machines may have one, and containers of one machine have their own
    processes.
    """
    processes = "".join(filter(str.isdigit, str(_PROCESSES.readlink())))
    return f"{socket.gethostname()} ({_BOOT.read_text()[:8]}/{processes})"
