"""The closed forms against hand numbers: section 2 facts of the paper and the arithmetic behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.batch import Batch, Request
from asap_ray.cost.hardware import ascend_910c, hardware_of
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import deepseek_v32, qwen3_235b, shape_of
from asap_ray.errors import ConfigError


def cost(tp: int = 4, moe_devices: int = 16) -> CostModel:
    """The paper's model on its die."""
    return CostModel(shape=deepseek_v32(), hardware=ascend_910c(), tp=tp, moe_devices=moe_devices)


def prompts(*lengths: int) -> tuple[Request, ...]:
    """Whole prompts."""
    return tuple(
        Request(request_id=str(index), num_tokens=length, arrival_s=0.0) for index, length in enumerate(lengths)
    )


@pytest.mark.parametrize(
    ("num_tokens", "attention_ms", "moe_16_ms", "moe_32_ms"),
    [
        (512, 0.26, 0.44, 0.22),
        (1024, 0.43, 0.44, 0.22),
        (2048, 0.83, 0.44, 0.22),
        (4096, 1.84, 0.74, 0.37),
        (8192, 4.69, 1.47, 0.74),
        (16384, 13.69, 2.95, 1.47),
        (32768, 44.97, 5.90, 2.95),
    ],
)
def test_a_layer_of_one_prompt(num_tokens: int, attention_ms: float, moe_16_ms: float, moe_32_ms: float) -> None:
    """Milliseconds by hand from 0.10 + 2.9e-4 s + 3.2942e-8 s^2, and max(0.44, 1.8e-4 s) at 16 devices."""
    seconds = (cost().attention_s(prompts(num_tokens)), cost().moe_s(num_tokens), cost(4, 32).moe_s(num_tokens))

    assert [round(each * 1e3, 2) for each in seconds] == pytest.approx([attention_ms, moe_16_ms, moe_32_ms], abs=0.011)


def test_one_long_prompt_against_many_short_ones() -> None:
    """2.2.1: 32k tokens as one prompt take 4.2 times as long as 32 of 1k."""
    ratio = cost().attention_s(prompts(32768)) / cost().attention_s(prompts(*[1024] * 32))

    assert ratio == pytest.approx(4.2, abs=0.01)


@pytest.mark.parametrize("moe_devices", [8, 16, 32])
def test_inflection_is_at_2444_tokens_whatever_e(moe_devices: int) -> None:
    """2.2.2: about 2k; there both sides of the plateau's end cost the same."""
    model = cost(4, moe_devices)

    assert round(model.inflection_tokens) == 2447  # the reference rounds the plateau to 0.44 ms: 2444
    assert model.moe_s(model.inflection_tokens) == pytest.approx(model.weights_s, rel=1e-9)


def test_reading_experts_is_the_plateau() -> None:
    """16 experts of INT8, 704.6 MB, at 1.6 TB/s: 0.440 ms."""
    assert round(cost().weights_s * 1e3, 3) == 0.440


def test_bf16_weights_double_the_plateau() -> None:
    """And move its end."""
    doubled = CostModel(shape=replace(deepseek_v32(), weight_bytes=2), hardware=ascend_910c(), tp=4, moe_devices=16)

    assert doubled.weights_s == pytest.approx(2 * cost().weights_s)


@pytest.mark.parametrize(
    ("num_tokens", "dispatch_ms", "combine_ms", "p2p_ms"),
    [(512, 0.050, 0.067, 0.154), (1024, 0.069, 0.103, 0.277), (8192, 0.345, 0.617, 1.997)],
)
def test_transfers(num_tokens: int, dispatch_ms: float, combine_ms: float, p2p_ms: float) -> None:
    """0.03 + 3.84e-5 n, 0.03 + 7.17e-5 n, 0.0314 + 2.40e-4 n; under 0.1 ms at 512 tokens (5.4)."""
    model = cost()
    seconds = (model.dispatch_s(num_tokens), model.combine_s(num_tokens), model.p2p_dispatch_s(num_tokens))

    assert [round(each * 1e3, 3) for each in seconds] == pytest.approx([dispatch_ms, combine_ms, p2p_ms], abs=0.0011)


@pytest.mark.parametrize(("num_tokens", "ratio"), [(1024, 4.0), (8192, 5.8)])
def test_p2p_is_slower_by_the_papers_ratios(num_tokens: int, ratio: float) -> None:
    """5.4."""
    model = cost()

    assert model.p2p_dispatch_s(num_tokens) / model.dispatch_s(num_tokens) == pytest.approx(ratio, abs=0.05)


def test_dispatch_of_1k_tokens_is_63_mb() -> None:
    """5.4: 8 copies of 7168 B and 512 B beside each, over four links of 400 GB/s and a launch."""
    seconds = cost().dispatch_s(1024) - cost().dispatch_s(0)

    assert round(seconds * 4 * 400e9 / 1e6) == 63


def test_chunks_sum_to_their_prompt_but_for_the_launch() -> None:
    """(s - h) and (s^2 - h^2) telescope: four chunks of 8k launch three times more."""
    whole = prompts(32768)[0]
    chunks = [whole.chunk(start, start + 8192) for start in range(0, 32768, 8192)]

    seconds = sum(cost().attention_s([chunk]) for chunk in chunks)

    assert seconds - cost().attention_s([whole]) == pytest.approx(3 * 0.10e-3, rel=1e-6)


def test_twice_the_ranks_halve_all_but_the_launch() -> None:
    """TP collectives are not charged: an assumption, only T=4 is published."""
    halves = [cost(tp).attention_s(prompts(4096)) - 0.10e-3 for tp in (4, 8)]

    assert halves[0] == pytest.approx(2 * halves[1])


def test_an_overloaded_device_pays_above_the_plateau_only() -> None:
    """Twice its rows of 4096 tokens; of 1024 tokens it still reads its weights once."""
    model = cost()

    assert (model.moe_s(4096, load=2.0), model.moe_s(1024, load=2.0)) == (2 * model.moe_s(4096), model.weights_s)


def test_nothing_takes_no_time() -> None:
    """An empty batch is not launched."""
    assert (cost().attention_s(()), cost().moe_s(0)) == (0.0, 0.0)


def test_a_batch_takes_its_layers_and_dispatches() -> None:
    """61 times; alone in a batch, what its prompt takes."""
    model = cost()

    assert model.batch_s(Batch(prompts(4096))) == pytest.approx(model.prompt_s(4096), rel=1e-12)
    assert model.prompt_s(4096) == pytest.approx(61 * (model.attention_s(prompts(4096)) + model.dispatch_s(4096)))


def test_qwen3_is_a_public_configuration() -> None:
    """64 query and 4 key-value heads of 128 on 4096: 71.3 M weights a layer; 18.9 M an expert."""
    shape = qwen3_235b()

    assert (shape.attention_params, shape.expert_params) == (2 * 4096 * 128 * 68, 3 * 4096 * 1536)


def test_unknown_presets_are_named() -> None:
    """With what there is."""
    with pytest.raises(ConfigError, match=r"unknown model 'gpt'; presets are deepseek-v3.2"):
        shape_of("gpt")
    with pytest.raises(ConfigError, match=r"unknown hardware 'abacus'; presets are ascend-910c"):
        hardware_of("abacus")
    with pytest.raises(ConfigError, match=r"unknown interconnect 'string'; presets are supernode, rdma, ethernet"):
        hardware_of("ascend-910c", "string")
