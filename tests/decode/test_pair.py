"""A pair of instances by vLLM's convention, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest

from asap_ray.actors.decode_service import PullCounts
from tests.decode.pair import ASKED, Pair, pair

T = TypeVar("T")
IDS = [7, 8, 9, 10] * 9
BODY: dict[str, Any] = {"prompt": IDS, "temperature": 0, "return_token_ids": True, "max_tokens": 12}


@pytest.fixture
def with_pair(tiny_model: Path) -> Callable[[Callable[[Pair, httpx.AsyncClient], Awaitable[T]]], T]:
    """The result of a client's work with a fresh pair."""

    def work(client: Callable[[Pair, httpx.AsyncClient], Awaitable[T]]) -> T:
        async def run() -> T:
            async with pair(tiny_model) as both, httpx.AsyncClient(trust_env=False, timeout=60) as http:
                return await client(both, http)

        return asyncio.run(run())

    return work


async def prefilled(both: Pair, http: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    """The answer of the prefill instance."""
    asked = BODY | {"max_tokens": 1, "kv_transfer_params": ASKED} | changes
    reply = await http.post(f"{both.prefill_url}/v1/completions", json=asked)
    body: dict[str, Any] = reply.json()
    return body


def test_the_answer_says_where_the_blocks_are(with_pair: Any) -> None:
    """Every field that vLLM's decode instances read; the blocks are held meanwhile."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, int]]:
        return (await prefilled(both, http))["kv_transfer_params"], both.prefill.hand_off.totals()

    params, totals = with_pair(work)

    named = {name: params.pop(name) for name in ("remote_engine_id", "remote_request_id", "remote_port")}
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[0, 1, 2]],
        "remote_host": "127.0.0.1",
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 36,
        "remote_blocks_expiry_time": None,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }
    assert [type(value) for value in named.values()] == [str, str, int]
    assert totals == {"granted": 1, "pulled": 0, "aborted": 0, "expired": 0, "lost": 0, "open": 1}


def test_the_decode_instance_goes_on(with_pair: Any) -> None:
    """Its tokens are those of an instance that does both, with a prefix hit too; all blocks are let go."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[list[Any], list[int], PullCounts, dict[str, int]]:
        answers, hits = [], []
        for _ in range(2):
            params = (await prefilled(both, http))["kv_transfer_params"]
            hits.append(params["remote_prefill_cached_tokens"])
            body = BODY | {"kv_transfer_params": params}
            answers.append((await http.post(f"{both.decode_url}/v1/completions", json=body)).json())
        answers.append((await http.post(f"{both.prefill_url}/v1/completions", json=BODY)).json())
        return (
            [answer["choices"][0]["token_ids"] for answer in answers],
            hits,
            both.decode.counts,
            both.prefill.hand_off.totals(),
        )

    (first, second, alone), hits, counts, totals = with_pair(work)

    assert first == second == alone
    assert hits == [0, 32]
    assert (counts, totals["pulled"], totals["open"]) == (PullCounts(pulled=2), 2, 0)


def test_the_openai_client_streams_from_the_pair(with_pair: Any) -> None:
    """A chunk a token; the text is that of the whole answer."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[str, str, int]:
        params = (await prefilled(both, http))["kv_transfer_params"]
        asked: dict[str, Any] = {"model": "tiny", "prompt": IDS, "max_tokens": 12, "temperature": 0}
        async with openai.AsyncOpenAI(base_url=f"{both.decode_url}/v1", api_key="none") as client:
            stream = await client.completions.create(**asked, stream=True, extra_body={"kv_transfer_params": params})
            chunks = [chunk.choices[0].text async for chunk in stream]
            whole = await client.completions.create(**asked)
        return "".join(chunks), whole.choices[0].text, both.decode.counts.pulled

    streamed, whole, num_pulled = with_pair(work)

    assert (streamed, num_pulled) == (whole, 1)


def test_token_ids_in_and_out(with_pair: Any) -> None:
    """The same on vLLM's own route, without a tokenizer."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[list[int], list[int], list[int]]:
        route = "/inference/v1/generate"
        asked: dict[str, Any] = {"token_ids": IDS, "sampling_params": {"max_tokens": 1, "temperature": 0}}
        first = (await http.post(both.prefill_url + route, json=asked | {"kv_transfer_params": ASKED})).json()
        wanted = asked | {"sampling_params": {"max_tokens": 5, "temperature": 0}}
        params = {"kv_transfer_params": first["kv_transfer_params"]}
        pulled = (await http.post(both.decode_url + route, json=wanted | params)).json()
        alone = (await http.post(both.decode_url + route, json=wanted)).json()
        return tuple(answer["choices"][0]["token_ids"] for answer in (first, pulled, alone))  # type: ignore[return-value]

    first, pulled, alone = with_pair(work)

    assert pulled == alone
    assert pulled[:1] == first


def test_an_answer_that_ends_with_its_first_token_keeps_no_blocks(with_pair: Any) -> None:
    """Nothing is to follow; the router finds no parameters, as with vLLM."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[Any, int]:
        first = (await prefilled(both, http))["choices"][0]["token_ids"]
        answer = await prefilled(both, http, stop_token_ids=first)
        return answer.get("kv_transfer_params"), both.prefill.hand_off.counts.granted

    assert with_pair(work) == (None, 1)


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"max_tokens": 2}, "max_tokens", "max_tokens=2 with do_remote_decode; it must be 1"),
        ({"prompt": [IDS, IDS]}, "prompt", "2 prompts with kv_transfer_params; they are for one"),
        (
            {"kv_transfer_params": {"do_remote_prefill": True}},
            "kv_transfer_params",
            "missing key 'remote_block_ids' in kv_transfer_params",
        ),
        (
            {
                "kv_transfer_params": {
                    "do_remote_prefill": True,
                    "remote_block_ids": [[1]],
                    "remote_engine_id": "e",
                    "remote_request_id": "r",
                    "remote_host": "h",
                    "remote_port": 1,
                }
            },
            "kv_transfer_params",
            "do_remote_prefill=true: this instance computes prompts; it pulls none",
        ),
    ],
)
def test_what_a_prefill_instance_refuses(with_pair: Any, changes: dict[str, Any], param: str, message: str) -> None:
    """By field and value."""

    async def work(both: Pair, http: httpx.AsyncClient) -> dict[str, Any]:
        error: dict[str, Any] = (await prefilled(both, http, **changes))["error"]
        return error

    error = with_pair(work)

    assert (error["message"], error["param"]) == (message, param)


def test_a_lease_ends_by_time_and_what_waits_for_its_blocks_runs(with_pair: Any) -> None:
    """Nobody pulls; the cache is full of leases; the next prompt waits for the first to end."""

    async def work(both: Pair, http: httpx.AsyncClient) -> tuple[int, dict[str, int]]:
        both.prefill.hand_off._lease_s = 0.2
        both.prefill.open_caches()  # with such leases
        ids = [[n] * 250 for n in range(5)]
        replies = [await prefilled(both, http, prompt=prompt) for prompt in ids]
        return len([r for r in replies if "kv_transfer_params" in r]), both.prefill.hand_off.totals()

    num_answered, totals = with_pair(work)

    assert num_answered == 5
    assert totals["expired"] >= 1
