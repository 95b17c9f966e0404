"""Devices on CPUs: what crosses between shared memory and torch, what they start with, what they answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from asap_ray.backends.door import Door
from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host import HostAttention, HostMoE
from asap_ray.backends.host_comm import HostMoEComm, tensor_of
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request, Sampling, Token
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError
from asap_ray.models.model import load_model
from asap_ray.spec import ExpertType, KVCacheSpec, ParallelSpec, PrefillSpec
from asap_ray.telemetry.received import Received
from tests.csrc.world import World


def test_no_rows_are_a_tensor_that_kernels_take() -> None:
    """A zero-row item reaches the grouped GEMM, which wants the strides numpy does not keep (seen with D=1 T=2 E=2)."""
    rows_RH = tensor_of(np.empty((0, 64), np.float32), torch.float32)
    weights_EHI = torch.zeros(2, 64, 8)

    assert torch._grouped_mm(rows_RH, weights_EHI, offs=torch.zeros(2, dtype=torch.int32)).shape == (0, 8)


def test_sixteen_bit_rows_keep_their_values() -> None:
    """bfloat16 crosses as uint16, bit for bit."""
    rows_RH = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)

    assert tensor_of(rows_RH.view(torch.uint16).numpy(), torch.bfloat16).tolist() == [[1.5, -2.0]]


def test_half_a_message_does_not_end_a_device(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 1 of group 0 is stuck: at the deadline the device says so, and goes on to serve group 1."""
    world = World(dp_groups=2, tp=2)
    world.send(world.tokens(2), i=0, j=0)
    received = Received(len(world.instance.experts_of(0)), num_layers=4)
    comm = HostMoEComm(world.devices[0], received, torch.float32, deadline_s=0.05)
    has_said = threading.Event()
    caplog.handler.addFilter(lambda _: has_said.set() or True)

    def send() -> None:
        has_said.wait(20)
        for j in (0, 1):
            world.send(world.tokens(2), i=1, j=j)

    sender = threading.Thread(target=send)
    sender.start()
    group = drive(comm.dispatch_recv()).dp_group
    sender.join()

    assert group == 1
    assert "MoE device 0 waited 0.05 s for group 0 rank 1 slot 0" in caplog.messages[0]


def config_of(model: Path, **changes: Any) -> ServeConfig:
    """One rank and one MoE device."""
    limits = PrefillSpec(max_tokens=256, solo_tokens=128, inflection_tokens=32, deadline_s=20.0)
    degrees = ParallelSpec(dp_groups=1, tp=1, moe_devices=1)
    return ServeConfig(model=str(model), parallel=degrees, prefill=limits, **changes)


def answer(config: ServeConfig, *prompts: Request) -> list[Token]:
    """The tokens of an instance in this process, one prompt after the other."""
    model, tokens = load_model(config.model), SimpleQueue[Token]()
    attention, moe = HostAttention(config, model, 0, SoloCollective(), epoch=1), HostMoE(config, model, 0)
    attention.connect([moe.registration({})])
    moe.connect([attention.registration({})])
    door = Door(attention.runtime, config.prefill, lambda _batch, made, _stamps: tokens.put(made[0]))
    with ThreadPoolExecutor(2) as threads:
        streams = [threads.submit(attention.serve, door), threads.submit(moe.serve)]
        try:
            answers = []
            for prompt in prompts:
                door.put(Batch((prompt,)))
                answers.append(tokens.get(timeout=60))
            return answers
        finally:
            attention.runtime.close()
            moe.runtime.close()
            for stream in streams:
                stream.result()


def prompt_of(num_tokens: int) -> Request:
    """Token ids in order; the likeliest token's probability is asked for."""
    ids = np.arange(num_tokens, dtype=np.int32).tobytes()
    return Request(
        request_id="a", num_tokens=num_tokens, arrival_s=0.0, token_ids=ids, sampling=Sampling(num_logprobs=0)
    )


def test_a_prefix_in_pages_gives_the_same_token(tiny_model: Path) -> None:
    """Computed whole outside of pages, in them, and behind a block that is there."""
    plain = prompt_of(100)
    paged = replace(plain, table=(5, 2))

    tokens = answer(config_of(tiny_model), plain, paged, paged.behind(64))

    assert {token.token_id for token in tokens} == {tokens[0].token_id}
    assert [token.logprob for token in tokens] == pytest.approx([tokens[0].logprob] * 3, rel=1e-4)


def test_a_rank_says_how_many_blocks_it_has(tiny_model: Path) -> None:
    """Three layers of keys and values of two heads of 16 in float32: 49 kB a block of 64 tokens."""
    config = config_of(tiny_model, kv_cache=KVCacheSpec(memory_bytes=1_000_000))

    registration = HostAttention(config, load_model(tiny_model), 0, SoloCollective(), epoch=1).registration({})

    assert registration.num_blocks == 20
    assert registration.pages
    assert registration.pages.num_bytes == 20 * 49_152


def test_a_device_too_small_for_a_pass_is_refused_when_it_starts(tiny_model: Path) -> None:
    """Before anything is served."""
    config = config_of(tiny_model, device_memory_bytes=1_000_000)

    with pytest.raises(ConfigError, match=r"the memory of a device is 1\.0 - process with weights .* max_tokens=256"):
        HostAttention(config, load_model(tiny_model), 0, SoloCollective(), epoch=1)


def test_experts_may_be_int8(tiny_model: Path) -> None:
    """The same token, about as likely: not exactly, for rounding is what int8 does."""
    in_float, in_int8 = (answer(config_of(tiny_model, expert_type=each), prompt_of(40))[0] for each in ExpertType)

    assert in_int8.token_id == in_float.token_id
    assert in_int8.logprob == pytest.approx(in_float.logprob, rel=0.02)
    assert in_int8.logprob != in_float.logprob
