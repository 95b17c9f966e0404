"""Prompts a second of whole systems on the same cores: an instance of devices, one undivided model, transformers."""

# Shapes: B prompts of a forward, L tokens of each.

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from equal_cores.feed import AsyncFeed, play
from equal_cores.systems import OURS, Asynchronous, running

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request
from asap_ray.models.model import Model

Run = Callable[[list[Request]], float]
"""Seconds until every prompt has its first token."""

BATCH_TOKENS: Final = 2048
IMPLEMENTATIONS: Final = ("eager", "grouped_mm")
"""Of experts in `transformers`; `batched_mm` copies a matrix for each token and expert, 17 GB here."""


def prompts(num_prompts: int, num_tokens: int, vocab_size: int, seed: int) -> list[Request]:
    """Random ones, all of one length."""
    tokens = np.random.default_rng(seed)
    return [
        Request(
            request_id=str(index),
            num_tokens=num_tokens,
            arrival_s=0.0,
            token_ids=tokens.integers(0, vocab_size, num_tokens, dtype=np.int32).tobytes(),
        )
        for index in range(num_prompts)
    ]


@contextmanager
def instance(directory: Path) -> Iterator[Run]:
    """Two attention groups and two MoE devices, a process with one thread each, fed by the policy of an instance."""
    cores = sorted(os.sched_getaffinity(0))
    with running(directory, (cores[0], cores[-1]), {OURS: Asynchronous("paper", 1024, 2048)}) as systems:
        system = systems[OURS]

        def run(requests: list[Request]) -> float:
            feed = system.feed()
            assert isinstance(feed, AsyncFeed)
            return play(system.fleet, feed, requests).wall_s

        yield run


def undivided(model: Model) -> Run:
    """The same stages in one process, one after the other, batches of `BATCH_TOKENS`."""
    whole = model.undivided(SoloCollective(), torch.float32)

    def run(requests: list[Request]) -> float:
        began_s = time.perf_counter()
        for batch in in_batches(requests, BATCH_TOKENS):
            drive(whole.step(drive(whole.start(Batch(tuple(batch))))))
        return time.perf_counter() - began_s

    return run


def references(directory: Path) -> dict[str, Run]:
    """`transformers`, one prompt a forward or `BATCH_TOKENS`, with each implementation of experts."""
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    return {
        f"{experts}, {name}": _reference(oracle, experts, batch_tokens)
        for experts in IMPLEMENTATIONS
        for name, batch_tokens in (("one a forward", 1), ("batches", BATCH_TOKENS))
    }


def _reference(oracle: Any, experts: str, batch_tokens: int) -> Run:
    def run(requests: list[Request]) -> float:
        oracle.set_experts_implementation(experts)
        began_s = time.perf_counter()
        with torch.inference_mode():
            for batch in in_batches(requests, batch_tokens):
                ids = np.stack([np.frombuffer(request.token_ids, np.int32) for request in batch])
                oracle(torch.from_numpy(ids).long(), use_cache=False, logits_to_keep=1).logits.argmax(-1).tolist()
        return time.perf_counter() - began_s

    return run


def in_batches(requests: list[Request], batch_tokens: int) -> Iterator[list[Request]]:
    """Prompts of one length, as many at once as fit; at least one."""
    size = max(1, batch_tokens // requests[0].num_tokens)
    for start in range(0, len(requests), size):
        yield requests[start : start + size]
