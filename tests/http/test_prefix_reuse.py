"""Prompts that share a beginning, served: what is cached is not computed again, and the answers stay the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.config import ServeConfig
from asap_ray.spec import KVCacheSpec, ParallelSpec
from tests.http.echo_groups import EchoGroups

PROMPT = list(range(1, 31))


@pytest.fixture
def config(config: ServeConfig) -> ServeConfig:
    """One group, blocks of 8 tokens."""
    parallel = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
    return replace(config, parallel=parallel, kv_cache=KVCacheSpec(block_size=8))


def cached_groups() -> EchoGroups:
    """One group with room for 256 tokens."""
    return EchoGroups(num_groups=1, num_blocks=32, block_size=8)


def answers(config: ServeConfig, model: ServedModel, groups: EchoGroups, *bodies: dict[str, object]) -> list[object]:
    """Each completion after the one before, of one instance; the bodies of the answers."""

    async def scenario() -> list[object]:
        service = PrefillService(config, model, groups)
        service.open_caches()
        transport = httpx.ASGITransport(build_api(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://instance") as session:
            replies = [await session.post("/v1/completions", json=body) for body in bodies]
        await service.close()
        return [reply.json() for reply in replies]

    return asyncio.run(scenario())


def cached(answer: object) -> object:
    """Tokens of the prompt that were found."""
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("second", "expected"),
    [(PROMPT, 24), (PROMPT[:24], 16), (PROMPT[:25], 24), (PROMPT[:8] + [99] * 20, 8), ([99, *PROMPT], 0)],
)
def test_usage_tells_what_was_cached(config: ServeConfig, model: ServedModel, second: list[int], expected: int) -> None:
    """Full blocks of the longest common beginning, without the last token."""
    bodies = [{"prompt": prompt, "max_tokens": 2} for prompt in (PROMPT, second)]

    assert [cached(answer) for answer in answers(config, model, cached_groups(), *bodies)] == [0, expected]


def test_only_the_rest_is_computed(config: ServeConfig, model: ServedModel) -> None:
    """The group gets 6 of 30 tokens."""
    groups = cached_groups()

    answers(config, model, groups, {"prompt": PROMPT}, {"prompt": PROMPT})

    assert [(batch.num_tokens, batch.requests[0].past_tokens) for batch in groups.batches] == [(30, 0), (6, 24)]


def test_an_answer_is_the_same_with_a_hit(config: ServeConfig, model: ServedModel) -> None:
    """The echo reads the beginning from its pages."""
    body = {"prompt": PROMPT, "max_tokens": 4, "return_token_ids": True}

    cold, hit = answers(config, model, cached_groups(), body, body)

    assert cold["choices"] == hit["choices"]  # type: ignore[index]


def test_salts_share_nothing(config: ServeConfig, model: ServedModel) -> None:
    """But with themselves."""
    bodies = [{"prompt": PROMPT, "cache_salt": salt} for salt in ("mine", "yours", "mine")]

    assert [cached(answer) for answer in answers(config, model, cached_groups(), *bodies)] == [0, 0, 24]


def test_a_prompt_beyond_a_batch_runs_in_pieces(config: ServeConfig, model: ServedModel) -> None:
    """100 tokens with batches of at most 64, and turns of 32."""
    groups = cached_groups()
    body = {"prompt": [1 + n % 50 for n in range(100)]}

    (answer,) = answers(replace(config, policy="asap"), model, groups, body)

    assert [batch.num_tokens for batch in groups.batches] == [25, 25, 25, 25]
    assert answer["usage"]["prompt_tokens"] == 100  # type: ignore[index]


def test_what_no_cache_can_hold_is_refused_with_its_size(config: ServeConfig, model: ServedModel) -> None:
    """A retry would not help."""
    groups = EchoGroups(num_groups=1, num_blocks=4, block_size=8)

    (answer,) = answers(config, model, groups, {"prompt": PROMPT, "max_tokens": 4})

    assert answer["error"] == {  # type: ignore[index]
        "message": "prompt and answer have up to 33 tokens; the cache of an attention group holds 32",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": None,
    }
