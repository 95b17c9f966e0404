"""The processes below a served instance: who they are, and what each holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROLES: Final = {
    "ray::AttentionGroup": "attention group",
    "ray::GroupRank": "attention rank",
    "ray::MoEDevice": "MoE device",
    "ray::ServeReplica:asap": "frontend",
    "ray::ProxyActor": "proxy",
    "ray::ServeController": "controller",
}
"""By how the title of a process begins."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    pid: int
    role: str
    private_mb: float
    num_fds: int
    num_segments: int  # of ours that it has mapped


def descendants(pid: int) -> Iterator[int]:
    """Every process below `pid`, and those that are dead but not collected."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    below = list(children.get(pid, ()))
    while below:
        yield (child := below.pop())
        below += children.get(child, ())


def title_of(pid: int) -> str:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def role_of(pid: int) -> str:
    """Empty for those that are not ours."""
    title = title_of(pid)
    return next((role for start, role in ROLES.items() if title.startswith(start)), "")


def is_defunct(pid: int) -> bool:
    """Whether it is dead and nobody has collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def exists(pid: int) -> bool:
    """Whether it lives."""
    return Path(f"/proc/{pid}/exe").exists() and not is_defunct(pid)


def look(root: int) -> list[Process]:
    """All with a role below `root`, as they are now."""
    found = []
    for pid in descendants(root):
        if role := role_of(pid):
            with contextlib.suppress(OSError):
                found.append(_measure(pid, role))
    return sorted(found, key=lambda each: (each.role, each.pid))


def _measure(pid: int, role: str) -> Process:
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous_kb = int(status.partition("RssAnon:")[2].split()[0])
    segments = {line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:asap-" in line}
    num_fds = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Process(pid, role, anonymous_kb / 1024, num_fds, len(segments))
