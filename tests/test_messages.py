"""Control messages survive the wire, and nothing malformed does."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from asap_ray.batch import Batch, Duty, Request, Sampling, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.messages import (
    Answered,
    Events,
    Registration,
    Registrations,
    Step,
    decode,
    differing_fields,
    encode,
)
from asap_ray.spec import ParallelSpec
from asap_ray.totals import DeviceTotals, GroupTotals, Pace, RankTotals, Spent, StreamTotals
from asap_ray.tracks import Role, Source, StartedBatch, Timeline, Track

SAMPLING = Sampling(max_tokens=3, temperature=0.5, seed=7, num_logprobs=2, stop_token_ids=(1, 2))
REQUEST = Request(request_id="a", num_tokens=2, arrival_s=1.5, token_ids=b"\1\0\0\0\2\0\0\0", sampling=SAMPLING)
TOKEN = Token(request_id="a", token_id=5, logprob=-0.5, top_logprobs=((5, -0.5), (6, -1.5)), finish_reason="stop")
DEVICE = Registration(
    role="moe", index=1, tp_rank=0, pid=2, fd=3, num_bytes=4, epoch=2**62, node="n", fingerprint={"model": "m"}
)
STREAM = StreamTotals(work_s=1.0, starved_s=2.0, blocked_s=0.5)
MESSAGES = [
    REQUEST,
    Batch((REQUEST,)),
    Batch((REQUEST.chunk(1, 2),)),
    Step((Batch((REQUEST,)), Batch(()))),
    Events((TOKEN,), Stamps(attention_s=1.0)),
    Answered(TOKEN, {"queue_s": 0.25}),
    Answered(status=429, error="full"),
    Duty(1.0, 2, 3),
    Pace({"5.4": Spent(0.5, 24)}),
    GroupTotals(
        ranks=(
            RankTotals(duty=Duty(1.0, 2, 3), dispatch_s=0.5, combine_s=0.25, idle_s=4.0, backpressure_s_M=(0.125, 0.0)),
        )
    ),
    Timeline(
        tracks=(
            Track(
                source=Source(role=Role.ATTENTION, index=1, tp_rank=2),
                stream="attention",
                spans=b"\0" * 32,
                batches=(StartedBatch(number=1, num_tokens=2, request_ids=("a", "b")),),
            ),
        )
    ),
    DeviceTotals(
        duty=Duty(1.0, 2, 3),
        receive=STREAM,
        compute=STREAM,
        send=STREAM,
        num_tokens=5,
        num_dropped=1,
        num_expert_calls=4,
        rows_E=(3, 0),
        steps_L=(0, 2),
    ),
    Registrations((DEVICE,)),
    ServeConfig(model="m", parallel=ParallelSpec(dp_groups=1, tp=2, moe_devices=3)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Any) -> None:
    """What is decoded equals what was encoded."""
    assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "not msgpack"),
        (msgpack.packb([1]), "expected a duty message of version 1, got \\[1\\]"),
        (msgpack.packb({"v": 2, "kind": "duty"}), "'v': 2"),
        (msgpack.packb({"v": 1, "kind": "batch"}), "'kind': 'batch'"),
        (msgpack.packb({"v": 1, "kind": "duty", "body": None}), "a duty message must be a mapping"),
        (msgpack.packb({"v": 1, "kind": "duty", "body": {"compute_s": 1.0}}), "missing key 'num_items'"),
        (
            msgpack.packb({"v": 1, "kind": "duty", "body": {"compute_s": "x", "num_items": 1, "num_rows": 1}}),
            "compute_s='x' must be of type float",
        ),
    ],
)
def test_a_malformed_message_is_refused_by_name(packed: bytes, text: str) -> None:
    """Another version, another kind, a missing field or a wrong type: never a guess."""
    with pytest.raises(ConfigError, match=text):
        decode(Duty, packed)


def test_the_handshake_names_what_differs() -> None:
    """Two fingerprints that differ say in which field, and how."""
    ours = {"model": "a", "parallel.tp": "1", "extra": "x"}
    theirs = {"model": "a", "parallel.tp": "2"}

    assert list(differing_fields(ours, theirs)) == [("extra", "x", "nothing"), ("parallel.tp", "1", "2")]
