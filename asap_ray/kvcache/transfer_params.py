"""`kv_transfer_params` of a request and of its answer, in vLLM's convention: routers carry the latter on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from asap_ray.errors import ConfigError, RequestError
from asap_ray.strict import build

PARAM: Final = "kv_transfer_params"
"""The field of a request, and of an answer."""

BlockIds = tuple[tuple[int, ...], ...]
"""One table for each group of layers whose caches share tables; ours has one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDecode:
    """Asked of a prefill instance: answer with one token and keep the blocks, the decode is elsewhere.

    The `remote_` fields are null here; a router sends them along.
    """

    do_remote_decode: bool
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_block_ids: BlockIds | None = None
    remote_host: str | None = None
    remote_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    """Told to a decode instance: the prefill was elsewhere, and its blocks can be pulled from there.

    A prefill instance puts it into its answer, a router into the request to the decode instance, unchanged.
    """

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: BlockIds
    remote_engine_id: str
    remote_request_id: str  # what notifications about the pull call it
    remote_host: str  # of the side channel, where a decode instance asks how to read
    remote_port: int
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int | None = None  # whose keys and values are in the blocks
    remote_blocks_expiry_time: float | None = None  # null: the lease is extended by heartbeats
    remote_registration_generation: int = 0
    transfer_mode: str = "pull"
    remote_prefill_cached_tokens: int = 0


Transfer = RemoteDecode | RemotePrefill

_T = TypeVar("_T", RemoteDecode, RemotePrefill)


def read_transfer(values: Any) -> Transfer | None:
    """What a request asks of its instance; None if nothing: no parameters, or both of their flags are false.

    Raises:
        RequestError: see `read_params`.
    """
    if values is None:
        return None
    flags = values if isinstance(values, Mapping) else {"do_remote_decode": True}  # refused below
    if flags.get("do_remote_prefill"):
        return read_params(RemotePrefill, values)
    return read_params(RemoteDecode, values) if flags.get("do_remote_decode") else None


def read_params(cls: type[_T], values: Any) -> _T:
    """The fields of `cls` out of a JSON object; routers and other engines add fields of their own, which are left out.

    `dataclasses.asdict` is the way back.

    Raises:
        RequestError: not an object, or a field is missing or of another type; names it.
    """
    known = {field.name for field in fields(cls)}
    if isinstance(values, Mapping):
        values = {name: value for name, value in values.items() if name in known}
    try:
        return build(cls, values, PARAM)
    except ConfigError as error:
        raise RequestError(str(error), param=PARAM) from None
