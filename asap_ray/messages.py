"""Control messages between scheduler, actors and jobs: versioned msgpack bytes, never pickles of our classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgpack

from asap_ray.batch import Batch, Duty, Request, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.kvcache.kinds import CacheSpec
from asap_ray.strict import build
from asap_ray.totals import DeviceTotals, GroupTotals, Pace
from asap_ray.tracks import Timeline

VERSION: Final = 1

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Where the KV cache of one attention rank lies, for whoever pulls blocks of it (`kvcache.page_memory`)."""

    pid: int
    fd: int
    num_bytes: int
    num_blocks: int
    spec: CacheSpec  # with `num_blocks`, the layout: `Storage` over the same bytes has the same pages


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Where a device's buffer is, and what it was built from (the join handshake)."""

    role: str  # "attention" or "moe"
    index: int  # group i or device e
    tp_rank: int  # j; 0 on a MoE device
    pid: int
    fd: int
    num_bytes: int
    epoch: int  # of this incarnation; a group's ranks share one
    node: str  # host name: buffers are shared inside one node
    fingerprint: dict[str, str]
    key: bytes = b""  # of device memory, which has no file
    link: bytes = b""  # for writers on other hosts: what NIXL has to know; empty without it
    base: int = 0  # and the buffer's address in its process
    num_blocks: int = 0  # of the KV cache on this rank; a group has the least of its ranks'. 0 on a MoE device
    pages: Pages | None = None  # where they lie; None on a MoE device


@dataclasses.dataclass(frozen=True, slots=True)
class Registrations:
    """The buffers of one actor, or of all on one side."""

    devices: tuple[Registration, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """One pass of a batch: its tokens and where the time went."""

    tokens: tuple[Token, ...]
    stamps: Stamps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCall:
    """What a decode instance asks of a prefill instance about the blocks of one request."""

    verb: str  # of `VERBS`
    engine_id: str
    request_id: str
    consumer: str = ""  # which rank of the decode side has pulled
    num_consumers: int = 1  # how many of them there are


VERBS: Final = ("read", "heartbeat", "pulled", "abort")
"""Where the blocks are, that they are still wanted, that all of them are here, that they are not wanted any more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAnswer:
    """Whether the blocks are still those of the request: what was pulled counts only if they are. Where, to `read`."""

    lease_s: float  # how long they stay from now on; 0 if there is no such lease any more
    table: tuple[int, ...] = ()
    num_tokens: int = 0  # whose keys and values are in them
    ranks: tuple[Pages, ...] = ()
    model: str = ""  # fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One worker's share of a step of a synchronous system: a micro-batch a slot."""

    batches: tuple[Batch, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """One token of a request, or why there is none, for callers inside the cluster.

    The parts of its TTFT come with the first token. `status` is what HTTP's would have been.
    """

    token: Token | None = None
    ttft_parts_s: dict[str, float] = dataclasses.field(default_factory=dict)
    status: int = 200
    error: str | None = None


_KINDS: Final[dict[type, str]] = {
    ServeConfig: "config",
    Batch: "batch",
    Request: "request",
    Answered: "answered",
    Registrations: "registrations",
    Events: "events",
    Step: "step",
    LeaseCall: "lease call",
    LeaseAnswer: "lease answer",
    Duty: "duty",
    Pace: "pace",
    GroupTotals: "group totals",
    DeviceTotals: "device totals",
    Timeline: "timeline",
}


def encode(message: Any) -> bytes:
    """Pack one of the kinds above."""
    envelope = {"v": VERSION, "kind": _KINDS[type(message)], "body": dataclasses.asdict(message)}
    return bytes(msgpack.packb(envelope))


def decode(cls: type[_T], packed: bytes) -> _T:
    """Unpack a message that must be of the kind `cls`.

    Raises:
        ConfigError: not msgpack, another version or kind, or a field that is missing, unknown or of another type.
    """
    kind = _KINDS[cls]
    try:
        envelope = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise ConfigError(f"a {kind} message is not msgpack: {error}") from None
    if not isinstance(envelope, dict) or envelope.get("v") != VERSION or envelope.get("kind") != kind:
        found = {key: envelope.get(key) for key in ("v", "kind")} if isinstance(envelope, dict) else envelope
        raise ConfigError(f"expected a {kind} message of version {VERSION}, got {found!r}")
    return build(cls, envelope.get("body"), f"a {kind} message")


def differing_fields(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each field two fingerprints disagree on, with both values; an absent one reads `nothing`."""
    for field in sorted({*ours, *theirs}):
        pair = ours.get(field, "nothing"), theirs.get(field, "nothing")
        if pair[0] != pair[1]:
            yield (field, *pair)
