"""What a device holds, against hand numbers of the paper's instance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.cost.hardware import ascend_910c
from asap_ray.cost.memory import Need, collocated, disaggregated, instance_of
from asap_ray.cost.shapes import Shape, deepseek_v32, kimi_k2, mixtral_8x22b, qwen3_235b
from asap_ray.errors import ConfigError
from asap_ray.layout import table_2
from asap_ray.spec import Instance, ParallelSpec, paper


def needs(shape: Shape, dp_groups: int, tp: int, moe_devices: int) -> tuple[Need, Need]:
    """Attention rank and MoE device of one split, with the paper's batches."""
    parallel = ParallelSpec(dp_groups=dp_groups, tp=tp, moe_devices=moe_devices)
    return disaggregated(shape, ascend_910c(), instance_of(shape, parallel, paper().prefill))


def test_int8_experts_fit_the_papers_16_devices() -> None:
    """58 layers of 16 experts of 44.04 M weights: 40.9 GB."""
    moe = needs(deepseek_v32(), 4, 4, 16)[1]

    assert (moe.weights_bytes, moe.fits) == (58 * 16 * 3 * 7168 * 2048, True)


def test_bf16_experts_do_not_fit_and_the_arithmetic_says_so() -> None:
    """81.7 GB of weights alone exceed the die's 64 GB (4.1)."""
    moe = needs(replace(deepseek_v32(), weight_bytes=2), 4, 4, 16)[1]

    assert moe.text() == "MoE device of 16: weights 81.7 + buffers 1.9 + reserve 6.4 = 90.0 GB > 64.0 GB"


def test_int8_experts_fit_beside_the_papers_own_buffers() -> None:
    """Table 2 asks for 15.0 GB on a MoE device; ours for an eighth: 40.9 + 15.0 + 6.4 = 62.3 GB."""
    moe = needs(deepseek_v32(), 4, 4, 16)[1]
    papers_bytes = sum(area.num_bytes for area in table_2(paper()) if area.device == "moe")

    whole = replace(moe, buffer_bytes=papers_bytes)

    assert (round(whole.total_bytes / 1e9, 1), whole.fits) == (62.3, True)


def test_attention_weights_divide_over_ranks_but_for_routers() -> None:
    """61 layers of 245.1 M weights, 3 dense ones of 396.4 M, twice 129280 x 7168 in 16 bits; and 58 routers."""
    rank = needs(deepseek_v32(), 4, 4, 16)[0]
    divided = 61 * 245.090e6 + 3 * 3 * 7168 * 18432 + 2 * 2 * 129280 * 7168
    routers = 58 * 7168 * 256 * 2

    assert rank.weights_bytes == pytest.approx(divided / 4 + routers, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "tp", "num_bytes"),
    [
        (deepseek_v32(), 4, 2 * 32768 * 61 * 1280),  # the latent is on every rank
        (qwen3_235b(), 4, 2 * 32768 * 94 * 2048 // 4),  # a head a rank
        (qwen3_235b(), 8, 2 * 32768 * 94 * 2048 // 4),  # four heads divide no further
    ],
)
def test_kv_of_two_longest_prompts(shape: Shape, tp: int, num_bytes: int) -> None:
    """Divided over the ranks as far as there are heads."""
    assert needs(shape, 1, tp, 16)[0].kv_bytes == num_bytes


def test_the_fullest_device_counts() -> None:
    """8 experts on 3 devices: one of them has 3."""
    moe = needs(mixtral_8x22b(), 1, 1, 3)[1]

    assert moe.weights_bytes == 56 * 3 * 3 * 6144 * 16384


def test_a_synchronous_device_holds_both_kinds() -> None:
    """Its attention share at T=4 and its experts at E=32, both buffers, keys and values, one reserve."""
    shape = deepseek_v32()
    instance = instance_of(shape, ParallelSpec(dp_groups=8, tp=4, moe_devices=32), paper().prefill)
    rank, moe = disaggregated(shape, ascend_910c(), instance)

    need = collocated(shape, ascend_910c(), instance)

    assert need.total_bytes == rank.total_bytes + moe.total_bytes - moe.reserve_bytes


def test_kimi_k2_needs_more_than_16_devices() -> None:
    """Half as many experts again: 63.4 GB of INT8 weights and 6.4 GB of reserve."""
    assert [needs(kimi_k2(), 2, 4, moe_devices)[1].fits for moe_devices in (16, 24)] == [False, True]


def test_more_devices_than_experts_is_refused() -> None:
    """As an instance would be."""
    with pytest.raises(ConfigError, match=r"moe_devices=9 exceeds num_experts=8"):
        needs(mixtral_8x22b(), 1, 1, 9)


def test_the_papers_shape_is_the_papers_instance() -> None:
    """`instance_of` gives Table 1."""
    expected: Instance = paper()

    assert instance_of(deepseek_v32(), expected.parallel, expected.prefill) == expected


def test_a_need_at_its_limit_fits() -> None:
    """Bytes are counted, not rounded."""
    need = Need(device="x", weights_bytes=9, reserve_bytes=1, memory_bytes=10)

    assert (need.fits, replace(need, weights_bytes=10).fits) == (True, False)
