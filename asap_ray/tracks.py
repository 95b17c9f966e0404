"""What recorders hand over: the last spans of every stream of some devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a device is."""

    ATTENTION = "attention"  # rank j of group i
    MOE = "moe"  # device e
    WORKER = "worker"  # both, in a synchronous system


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A device that has streams."""

    role: Role
    index: int  # group i, device e or worker
    tp_rank: int = 0  # j

    @property
    def name(self) -> str:
        """As logs and metrics name it."""
        rank = f" rank {self.tp_rank}" if self.role is Role.ATTENTION else ""
        return f"{self.role} {self.index}{rank}"


def device_order(device: str) -> list[tuple[int, int, str]]:
    """A key: `attention:1`, `moe:2`, `moe:10`, and those of other replicas (`1:moe:0`) behind them."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in device.split(":")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBatch:
    """A batch that spans refer to by its number."""

    number: int
    num_tokens: int
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One stream."""

    source: Source
    stream: str
    spans: bytes  # records of `telemetry.recording.SPAN`, in order of time
    batches: tuple[StartedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Streams whose times are of one clock."""

    tracks: tuple[Track, ...]

    @classmethod
    def of(cls, parts: Iterable[Timeline]) -> Timeline:
        """One of several devices."""
        return cls(tracks=tuple(track for part in parts for track in part.tracks))
