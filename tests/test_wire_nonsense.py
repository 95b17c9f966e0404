"""Messages of any content, from peers, decode instances and vLLM: understood, or refused."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asap_ray.actors.side_channel import SideChannel, ask
from asap_ray.batch import Batch, Request
from asap_ray.errors import AsapError, ConfigError, RequestError, Unavailable
from asap_ray.kvcache.kinds import CacheSpec, grouped_query
from asap_ray.kvcache.nixl_wire import Region, asked_rank, handshake, meta_request, read_notice
from asap_ray.kvcache.transfer_params import RemotePrefill, read_params, read_transfer
from asap_ray.messages import LeaseAnswer, LeaseCall, Pages, Registration, Registrations, decode, encode
from asap_ray.spec import RowType
from asap_ray.strict import build
from tests.nonsense import VALUES, damaged, spoilt

SEVERAL = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SPEC = CacheSpec(num_layers=2, block_size=64, kinds=(grouped_query(2, 64),), element=RowType.FLOAT32)
PAGES = Pages(pid=1, fd=2, num_bytes=3, num_blocks=4, spec=SPEC)
DEVICE = Registration(
    role="attention",
    index=0,
    tp_rank=0,
    pid=1,
    fd=2,
    num_bytes=3,
    epoch=4,
    node="n",
    fingerprint={"a": "b"},
    pages=PAGES,
)
MESSAGES = (
    Registrations((DEVICE,)),
    Batch((Request(request_id="a", num_tokens=1, arrival_s=0.0, token_ids=b"\1\0\0\0"),)),
    LeaseCall(verb="read", engine_id="e", request_id="a"),
    LeaseAnswer(lease_s=1.0, table=(1, 2), num_tokens=3, ranks=(PAGES,)),
)
PARAMS = {"remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "a", "remote_host": "h"}
PREFILLED: dict[str, Any] = {"do_remote_prefill": True, "remote_port": 1, **PARAMS}
REGION = Region(engine_id="e", agent=b"agent", address=1 << 40, num_blocks=10, spec=SPEC)
THEIRS: dict[str, Any] = {"engine_id": "theirs", "agent_metadata": b"a", "block_size": 128, "block_lens": [1, 1]}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
@SEVERAL
def test_a_damaged_message_is_read_or_refused(message: Any, data: st.DataObject) -> None:
    """Truncated, reordered, overwritten."""
    packed = data.draw(damaged(encode(message)))

    with contextlib.suppress(ConfigError):
        decode(type(message), packed)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
@SEVERAL
def test_a_spoilt_message_is_read_or_refused(message: Any, data: st.DataObject) -> None:
    """Any value in any field; numbers that msgpack has not, too."""
    body = data.draw(spoilt(msgpack.unpackb(encode(message))["body"]))

    with contextlib.suppress(ConfigError):
        build(type(message), body, "a message")


@given(values=VALUES | spoilt(PREFILLED))
@SEVERAL
def test_spoilt_transfer_parameters_are_read_or_refused(values: Any) -> None:
    """They come from clients, as JSON."""
    with contextlib.suppress(RequestError):
        read_transfer(values)


def test_a_number_beyond_float64_is_refused_by_name() -> None:
    """JSON's integers have no end."""
    with pytest.raises(RequestError, match=r"remote_blocks_expiry_time=10+ must be finite"):
        read_params(RemotePrefill, PREFILLED | {"remote_blocks_expiry_time": 10**400})


@given(message=st.binary(max_size=30) | damaged(b"cmpl-1-0:12") | damaged(b"HB:a,b") | st.text().map(str.encode))
@SEVERAL
def test_any_notification_is_read_or_left(message: bytes) -> None:
    """An error would end the task that listens."""
    read_notice(message)


@pytest.mark.parametrize("number", ["²", "9" * 5000, "٣", "-1"])
def test_a_strange_count_is_no_notification(number: str) -> None:
    """`int` refuses some of what `str.isdigit` takes."""
    assert read_notice(f"a:{number}".encode()) is None


@given(message=damaged(meta_request(1)))
@SEVERAL
def test_a_damaged_question_is_read_or_refused(message: bytes) -> None:
    """A rank that is asked for is none of the last ones, counted from the end."""
    with contextlib.suppress(ConfigError):
        assert asked_rank(message) >= 0


@given(data=st.data())
@SEVERAL
def test_a_damaged_handshake_is_read_or_refused(data: st.DataObject) -> None:
    """A decode instance's own."""
    fields = data.draw(spoilt(THEIRS).filter(_packs))
    payload = {"compatibility_hash": "h", "agent_metadata_bytes": msgpack.packb(fields)}

    with contextlib.suppress(ConfigError, Unavailable):
        handshake(data.draw(st.just(msgpack.packb(payload)) | damaged(msgpack.packb(payload))), REGION)


def _packs(values: Any) -> bool:
    """Whether msgpack has such values."""
    try:
        return bool(msgpack.packb(values))
    except (OverflowError, UnicodeEncodeError):
        return False


@given(content=st.lists(st.binary(max_size=40), min_size=1, max_size=12))
@settings(max_examples=1, deadline=None)
def test_the_side_channel_outlives_any_caller(content: list[bytes]) -> None:
    """Whatever is sent first, the next peer is answered."""
    call = LeaseCall(verb="read", engine_id="e", request_id="a")
    answer = LeaseAnswer(lease_s=7.0)

    async def scenario() -> LeaseAnswer:
        channel = SideChannel(lambda _: answer)
        await channel.open()
        try:
            for each in (*content, b"\xff\xff\xff\xff", b"\0\0\0\5\xc1\xc1\xc1\xc1\xc1"):
                _, writer = await asyncio.open_connection(*channel.address("e"))
                writer.write(each)
                writer.close()
                await writer.wait_closed()
            return await ask(*channel.address("e"), call)
        finally:
            await channel.close()

    assert asyncio.run(scenario()) == answer


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 2**70), ("127.0.0.1", -1), ("127.0.0.1", 70_000), ("a" * 300, 1), ("\0", 1), ("", 0)],
)
def test_an_address_that_is_none_is_unavailable(host: str, port: int) -> None:
    """It comes from a client, by way of `kv_transfer_params`."""
    with pytest.raises(AsapError, match=r"the prefill instance at"):
        asyncio.run(ask(host, port, LeaseCall(verb="read", engine_id="e", request_id="a")))
