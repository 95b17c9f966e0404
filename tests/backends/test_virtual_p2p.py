"""Synchronous sends in virtual time (5.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.backends.virtual.instance import VirtualInstance, VirtualSpec
from asap_ray.backends.virtual.p2p import P2PInstance
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.hardware import ascend_910c
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import deepseek_v32
from asap_ray.errors import ConfigError
from asap_ray.spec import ParallelSpec, paper


def spec_of(dp_groups: int, moe_devices: int) -> VirtualSpec:
    """One layer, one rank a group, nothing pooled."""
    cost = CostModel(shape=replace(deepseek_v32(), num_layers=1), hardware=ascend_910c(), tp=1, moe_devices=moe_devices)
    parallel = ParallelSpec(dp_groups=dp_groups, tp=1, moe_devices=moe_devices)
    return VirtualSpec(cost=cost, parallel=parallel, prefill=paper().prefill, is_pooled=False)


def ends_of(build: type[VirtualInstance], spec: VirtualSpec, lengths: list[int]) -> list[float]:
    """When each group's only prompt has its token; all are at the doors at time 0."""
    runtime = VirtualRuntime()
    ends = dict.fromkeys(map(str, range(len(lengths))), 0.0)
    answered = runtime.signal("answers")

    def deliver(_batch: Batch, tokens: tuple[Token, ...], _stamps: Stamps) -> None:
        ends.update({token.request_id: runtime.now() for token in tokens})
        runtime.wake(answered)

    async def main() -> None:
        instance = build(runtime, spec, deliver)
        for group, num_tokens in enumerate(lengths):
            instance.doors[group].put(Batch((Request(request_id=str(group), num_tokens=num_tokens, arrival_s=0.0),)))
        runtime.spawn(instance.serve())
        while not all(ends.values()):
            await runtime.park(answered)

    runtime.run(main())
    return list(ends.values())


def attention_s(spec: VirtualSpec, num_tokens: int) -> float:
    """Of one prompt."""
    return spec.cost.attention_s([Request(request_id="", num_tokens=num_tokens, arrival_s=0.0)])


def after_send_s(spec: VirtualSpec, num_tokens: int) -> float:
    """From the last row in a device's hands to the results in the rank's."""
    cost = spec.cost
    return cost.dispatch_recv_s(num_tokens) + cost.moe_s(num_tokens) + cost.combine_s(num_tokens)


def test_sends_to_idle_receivers_are_the_papers_line() -> None:
    """With nobody else there, dispatch takes its handshakes and its bytes, one device after the other."""
    spec = spec_of(dp_groups=1, moe_devices=4)

    (end_s,) = ends_of(P2PInstance, spec, [4096])

    expected_s = attention_s(spec, 4096) + spec.cost.p2p_dispatch_s(4096) + after_send_s(spec, 4096)
    assert end_s == pytest.approx(expected_s, abs=1e-9)


def test_a_receiver_that_computes_holds_the_sender() -> None:
    """The second group's rows are not taken before the experts of the first group's are done."""
    spec = spec_of(dp_groups=2, moe_devices=1)
    cost = spec.cost

    _, end_s = ends_of(P2PInstance, spec, [512, 1024])

    computing_s = attention_s(spec, 512) + cost.p2p_dispatch_s(512) + cost.dispatch_recv_s(512)
    assert computing_s < attention_s(spec, 1024) < computing_s + cost.moe_s(512), "the second send meets computing"
    expected_s = computing_s + cost.moe_s(512) + cost.p2p_dispatch_s(1024) + after_send_s(spec, 1024)
    assert end_s == pytest.approx(expected_s, abs=1e-9)


def test_one_sided_dispatch_waits_for_no_receiver() -> None:
    """The same two prompts over shared buffers: the second one's rows are there when the first one's experts end."""
    spec = spec_of(dp_groups=2, moe_devices=1)

    asynchronous = ends_of(VirtualInstance, spec, [512, 1024])[1]
    synchronous = ends_of(P2PInstance, spec, [512, 1024])[1]

    assert asynchronous < synchronous - spec.cost.p2p_dispatch_s(1024)


def test_a_pool_is_refused() -> None:
    """Sends in turn need somebody to turn to."""
    spec = replace(spec_of(dp_groups=1, moe_devices=4), is_pooled=True)

    with pytest.raises(ConfigError, match="is_pooled"):
        P2PInstance(VirtualRuntime(), spec, lambda *_: None)
