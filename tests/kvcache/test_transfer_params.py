"""`kv_transfer_params` as vLLM's routers and decode instances read and write them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from asap_ray.errors import RequestError
from asap_ray.kvcache.transfer_params import RemoteDecode, RemotePrefill, read_params

ASKED = """{"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
            "remote_block_ids": null, "remote_host": null, "remote_port": null}"""
"""What routers send to a prefill instance."""

ANSWERED_BY_VLLM = """{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]],
    "remote_engine_id": "e", "remote_request_id": "cmpl-1", "remote_host": "127.0.0.1", "remote_port": 15601,
    "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 40, "remote_blocks_expiry_time": null,
    "transfer_mode": "pull", "remote_prefill_cached_tokens": 0}"""
"""What vLLM 0.32 answers, its ids shortened; 0.33 has `remote_registration_generation` besides."""


def as_json(params: RemoteDecode | RemotePrefill) -> Any:
    """Once through JSON."""
    return json.loads(json.dumps(asdict(params)))


def test_the_question_is_read_and_written_exactly() -> None:
    """Field by field, nulls included."""
    asked = json.loads(ASKED)

    assert as_json(read_params(RemoteDecode, asked)) == asked


def test_vllms_answer_is_read_and_written_exactly() -> None:
    """With the one field that came later."""
    answered = json.loads(ANSWERED_BY_VLLM)

    assert as_json(read_params(RemotePrefill, answered)) == answered | {"remote_registration_generation": 0}


def test_our_answer_is_vllms() -> None:
    """Only what belongs to the request has to be said."""
    ours = RemotePrefill(
        remote_block_ids=((1,),),
        remote_engine_id="e",
        remote_request_id="cmpl-1",
        remote_host="127.0.0.1",
        remote_port=15601,
        remote_num_tokens=40,
    )

    assert as_json(ours) == json.loads(ANSWERED_BY_VLLM) | {"remote_registration_generation": 0}


def test_what_a_decode_instance_needs_is_enough() -> None:
    """Five fields; the rest have vLLM's defaults."""
    needed = {
        "remote_block_ids": [[3, 4]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 5600,
    }
    params = read_params(RemotePrefill, needed)

    assert (params.remote_block_ids, params.tp_size, params.transfer_mode) == (((3, 4),), 1, "pull")


def test_fields_of_others_are_left_out() -> None:
    """Routers add their own."""
    assert read_params(RemoteDecode, {"do_remote_decode": True, "transfer_id": "x"}) == RemoteDecode(
        do_remote_decode=True
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_remote_decode": "yes"}, "do_remote_decode='yes' must be of type bool"),
        ({}, "missing key 'do_remote_decode' in kv_transfer_params"),
        ({"do_remote_decode": True, "remote_port": "80"}, "remote_port='80' must be of type int"),
        ({"do_remote_decode": True, "remote_block_ids": [1]}, "remote_block_ids=1"),
        ("pull", "kv_transfer_params must be a mapping, got 'pull'"),
    ],
)
def test_a_wrong_field_is_named(values: Any, message: str) -> None:
    """It is the client's mistake."""
    with pytest.raises(RequestError, match=message) as caught:
        read_params(RemoteDecode, values)

    assert caught.value.param == "kv_transfer_params"
