"""Splits of the devices: which there are, what they need, and what closed forms promise of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from asap_ray.evaluation.plan_bounds import alone_s, collocated_bounds, estimate_rps
from asap_ray.evaluation.plan_candidates import Candidate, candidates, sample_lengths
from asap_ray.evaluation.slo import criterion_of
from asap_ray.spec import ParallelSpec
from tests.evaluation.planned import CASE, MEAN


def split(found: Sequence[Candidate], text: str) -> Candidate:
    """The candidate of these degrees."""
    return next(candidate for candidate in found if candidate.text() == text)


def test_every_split_of_32_devices_is_a_candidate() -> None:
    """T of 1, 2, 4 and 8 with all D that leave a MoE device: 31 + 15 + 7 + 3; and T of a synchronous system."""
    found = candidates(CASE, 32, MEAN)

    assert [sum(each.system == system for each in found) for system in ("asap", "strong")] == [56, 4]


def test_the_papers_split_promises_as_much_as_any() -> None:
    """D=4, T=4, E=16 is within one percent of the best of its kind by closed forms."""
    found = [each for each in candidates(CASE, 32, MEAN) if each.system == "asap"]

    assert split(found, "asap D=4 T=4 E=16").estimate_rps == pytest.approx(found[0].estimate_rps, rel=0.01)


def test_the_papers_instance_is_bound_by_both_sides() -> None:
    """Either would carry about 24 RPS: both are within 4 % of each other, and the links far away."""
    bounds = dict(split(candidates(CASE, 32, MEAN), "asap D=4 T=4 E=16").bounds)

    assert bounds["attention"] == pytest.approx(bounds["MoE"], rel=0.04)
    assert bounds["link"] > 9 * bounds["MoE"]


def test_ethernet_is_bound_by_its_links() -> None:
    """115 KB of results a token and layer at 12.5 GB/s a device."""
    found = candidates(replace(CASE, interconnect="ethernet"), 32, MEAN)

    assert split(found, "asap D=4 T=4 E=16").bounds[0][0] in ("link", "round trip")


def test_long_prompts_on_single_devices_miss_a_p99_objective() -> None:
    """At T=1 a prompt of 27k tokens takes 8 s even alone, so nothing is promised."""
    found = candidates(CASE, 32, replace(MEAN, criterion=criterion_of("p99")))

    assert split(found, "asap D=16 T=1 E=16").estimate_rps == 0.0


def test_one_server_with_constant_service_waits_by_kingman() -> None:
    """Bound 1 RPS, TTFT alone 1 s, objective 2 s: wait rho / (2 (1 - rho)) = 1 s at rho = 2/3."""
    assert estimate_rps((("x", 1.0),), [1.0] * 9, criterion_of("mean"), 2.0) == pytest.approx(2 / 3)


def test_a_second_resource_costs_its_own_wait() -> None:
    """Two alike: each may take half of the second, so rho / (2 (1 - rho)) = 1/2 at rho = 1/2."""
    twice = (("x", 1.0), ("y", 1.0))

    assert estimate_rps(twice, [1.0] * 9, criterion_of("mean"), 2.0) == pytest.approx(1 / 2)


def test_groups_that_spare_devices_for_nothing_promise_less() -> None:
    """Of 8 devices Mixtral's MoE devices carry no more as 7 than as 4; the others serve attention better."""
    found = candidates(replace(CASE, model="mixtral-8x22b"), 8, MEAN)

    assert split(found, "asap D=4 T=1 E=4").estimate_rps > split(found, "asap D=1 T=1 E=7").estimate_rps


def test_a_prompt_alone_takes_its_layers_both_ways() -> None:
    """61 layers of attention, dispatch, copy, experts, results; and what lies outside layers."""
    cost = split(candidates(CASE, 32, MEAN), "asap D=4 T=4 E=16").case.setup().spec().cost
    layer_s = cost.prompt_s(1024) / 61 + cost.dispatch_recv_s(1024) + cost.moe_s(1024) + cost.combine_s(1024)

    assert alone_s(cost, 0.105, 1024) == pytest.approx(61 * layer_s + 0.105)


def test_uneven_experts_count_where_they_do_not_divide() -> None:
    """256 experts on 24 devices: the fullest has 11, the mean is 10.67."""
    case = split(candidates(CASE, 32, MEAN), "asap D=2 T=4 E=24").case

    assert case.setup().skew.slowest(24) == pytest.approx(11 * 24 / 256)


def test_mixtral_has_no_more_moe_devices_than_experts() -> None:
    """8; and no synchronous system that gives each of 32 devices an expert."""
    found = candidates(replace(CASE, model="mixtral-8x22b"), 32, MEAN)

    assert {(each.system, each.case.ep <= 8) for each in found} == {("asap", True)}


def test_bf16_experts_at_16_devices_do_not_fit() -> None:
    """81.7 GB of them on a die of 64 GB."""
    papers = split(candidates(replace(CASE, weight_bytes=2), 32, MEAN), "asap D=4 T=4 E=16")

    assert (papers.fits, round(papers.fullest.weights_bytes / 1e9, 1)) == (False, 81.7)


def test_what_memory_keeps_out_is_named() -> None:
    """On 16 devices 8 for experts would carry most, and a die cannot hold 81.7 GB."""
    found = candidates(CASE, 16, MEAN)
    best = next(each for each in found if each.system == "asap")

    assert (best.case.ep, best.fits) == (8, False)


def test_degrees_of_a_synchronous_system_are_all_devices() -> None:
    """Every device has experts and is in a DP group."""
    found = candidates(CASE, 32, MEAN)

    assert split(found, "strong D=8 T=4 E=32").degrees == ParallelSpec(dp_groups=8, tp=4, moe_devices=32)


def test_a_synchronous_system_pays_for_the_rows_it_writes() -> None:
    """24.3 RPS of the paper's devices and trace with its 61.44 KB a token; 25.0 without."""
    setup = replace(CASE, dp=4, tp=4, ep=16).setup()

    bounds = dict(collocated_bounds(setup, sample_lengths(CASE)))

    assert bounds["devices"] == pytest.approx(24.3, abs=0.1)
