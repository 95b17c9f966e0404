"""Prompts that every instance of the tiny model must answer as transformers does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.served_model import served_model
from asap_ray.batch import Batch, Request
from asap_ray.config import ServeConfig

Run = Callable[[Coroutine[Any, Any, Any]], Any]
MakeConfig = Callable[..., ServeConfig]

PROMPTS = [[5], [7, 8, 9, 10, 11], list(range(20, 84)), [3] * 129, list(range(1, 257))]
"""One token, a few, half a batch, a solo batch (limit 128), and exactly the limit (256)."""


def request(index: int) -> Request:
    """Prompt `index` as a request."""
    ids = torch.tensor(PROMPTS[index], dtype=torch.int32)
    return Request(request_id=f"r{index}", num_tokens=len(ids), arrival_s=0.0, token_ids=ids.numpy().tobytes())


def instance_of(config: ServeConfig) -> PrefillInstance:
    """The instance as a frontend deployed with this configuration has it."""
    return PrefillInstance(config, served_model(config))


async def first_tokens(instance: PrefillInstance, group: int) -> dict[str, int]:
    """The first token of every prompt, from one group: two prompts share a batch, all are sent at once."""
    batches = [Batch((request(0), request(1))), *[Batch((request(n),)) for n in (2, 3, 4)]]

    async def ask(batch: Batch) -> dict[str, int]:
        return {t.request_id: t.token_id async for tokens, _ in instance.run(group, batch) for t in tokens}

    answers: dict[str, int] = {}
    for answer in await asyncio.gather(*map(ask, batches)):
        answers |= answer
    return answers


def first_token(model: Path, ids: list[int]) -> int:
    """Of one prompt, by transformers."""
    undivided = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        return int(undivided(torch.tensor([ids])).logits[0, -1].argmax())
