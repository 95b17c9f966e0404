"""A synchronous system in virtual time, against times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asap_ray.backends.virtual.lockstep import LockstepInstance, LockstepSpec
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.hardware import ascend_910c, hardware_of
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import deepseek_v32
from asap_ray.errors import ConfigError

LAYERS = 3
OVERHEAD_S = ascend_910c().step_overhead_s
Step = list[tuple[Batch, ...]]


class Script:
    """A policy that has its steps written out; the n-th may start at `starts_s[n]`."""

    def __init__(self, steps: list[Step], starts_s: list[float]) -> None:
        self._steps = list(zip(starts_s, steps, strict=True))

    def submit(self, request: Request, now: float) -> None:
        raise NotImplementedError

    def step(self, now: float) -> Step | None:
        if self._steps and self._steps[0][0] <= now:
            return self._steps.pop(0)[1]
        return None

    def wake_at(self, now: float) -> float | None:
        return max(now, self._steps[0][0]) if self._steps else None


def spec_of(link: str = "supernode", num_groups: int = 2, num_layers: int = LAYERS) -> LockstepSpec:
    """Groups of four dies, a few layers."""
    shape = replace(deepseek_v32(), num_layers=num_layers)
    return LockstepSpec(
        cost=CostModel(shape=shape, hardware=hardware_of("ascend-910c", link), tp=4, moe_devices=4 * num_groups)
    )


def batch_of(name: str, num_tokens: int) -> Batch:
    """One prompt; none of no tokens."""
    return Batch((Request(request_id=name, num_tokens=num_tokens, arrival_s=0.0),) if num_tokens else ())


def run(spec: LockstepSpec, steps: list[Step], starts_s: list[float] | None = None) -> dict[str, tuple[float, Stamps]]:
    """When each token came, and the parts of its time."""
    runtime = VirtualRuntime()
    answers: dict[str, tuple[float, Stamps]] = {}
    num_prompts = sum(
        not request.future_tokens
        for step in steps
        for batches in step
        for batch in batches
        for request in batch.requests
    )
    answered = runtime.signal("answers")

    def deliver(batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:  # noqa: ARG001
        answers.update({token.request_id: (runtime.now(), stamps) for token in tokens})
        runtime.wake(answered)

    instance = LockstepInstance(runtime, spec, Script(steps, starts_s or [0.0] * len(steps)), deliver)

    async def main() -> None:
        runtime.spawn(instance.serve())
        while len(answers) < num_prompts:
            await runtime.park(answered)

    runtime.run(main())
    return answers


@pytest.mark.parametrize("link", ["supernode", "rdma"])
def test_every_layer_waits_for_the_slowest_group(link: str) -> None:
    """A short prompt beside a long one pays the long one's attention and everybody's experts."""
    spec = spec_of(link)
    cost, latency_s = spec.cost, spec.cost.hardware.link.latency_s
    long, short = batch_of("long", 4096), batch_of("short", 512)

    answers = run(spec, [[(long,), (short,)]])

    barrier_s = cost.attention_s(long.requests) + cost.dispatch_s(4096) + latency_s + cost.moe_s(4608)
    slowest_s = barrier_s + cost.combine_s(4096) + latency_s
    assert answers["long"][0] == pytest.approx(OVERHEAD_S + LAYERS * slowest_s, abs=1e-9)
    expected_s = OVERHEAD_S + (LAYERS - 1) * slowest_s + barrier_s + cost.combine_s(512) + latency_s
    assert answers["short"][0] == pytest.approx(expected_s, abs=1e-9)


def test_an_idle_group_only_keeps_step() -> None:
    """One prompt alone takes its own attention and transfers, and its experts on all devices."""
    spec = spec_of()
    cost, alone = spec.cost, batch_of("alone", 8192)

    answers = run(spec, [[(alone,), (Batch(()),)]])

    layer_s = cost.attention_s(alone.requests) + cost.dispatch_s(8192) + cost.moe_s(8192) + cost.combine_s(8192)
    assert answers["alone"][0] == pytest.approx(OVERHEAD_S + LAYERS * layer_s, abs=1e-9)


def test_stamps_tell_computing_from_waiting() -> None:
    """Attention is the group's own; waiting at the barrier after the experts has its own part; the rest is total."""
    spec = spec_of()
    cost, short = spec.cost, batch_of("short", 512)

    ended_s, stamps = run(spec, [[(batch_of("long", 4096),), (short,)]])["short"]

    assert stamps.attention_s == pytest.approx(LAYERS * cost.attention_s(short.requests), abs=1e-9)
    assert stamps.combine_s == pytest.approx(LAYERS * cost.combine_s(512), abs=1e-9)
    assert stamps.total_s == pytest.approx(ended_s - OVERHEAD_S, abs=1e-9)


def test_two_micro_batches_hide_results_on_their_way() -> None:
    """One's results travel while the other's experts or attention run; writing rows takes the stream that computes."""
    spec = spec_of(num_groups=1)
    cost = spec.cost
    first, second = batch_of("first", 4096), batch_of("second", 4096)

    answers = run(spec, [[(first, second)]])

    send_s, moe_s = cost.attention_s(first.requests) + cost.dispatch_s(4096), cost.moe_s(4096)
    assert cost.combine_s(4096) < min(send_s, moe_s), "or results would not be there in time"
    expected_s = OVERHEAD_S + LAYERS * (2 * send_s + 2 * moe_s) + cost.combine_s(4096)
    assert answers["second"][0] == pytest.approx(expected_s, abs=1e-9)


def test_a_nic_hides_rows_on_their_way_too() -> None:
    """Over RDMA the second attention starts after a launch; the first one's rows are there when it ends."""
    spec = spec_of("rdma", num_groups=1, num_layers=1)
    cost, link = spec.cost, spec.cost.hardware.link
    first, second = batch_of("first", 4096), batch_of("second", 4096)

    answers = run(spec, [[(first, second)]])

    attention_s, moe_s = cost.attention_s(first.requests), cost.moe_s(4096)
    travel_s = cost.dispatch_s(4096) + link.latency_s
    assert link.launch_s < travel_s < min(attention_s, moe_s), "or the experts would wait for rows"
    send_s = attention_s + link.launch_s
    expected_s = OVERHEAD_S + 2 * send_s + 2 * moe_s + cost.combine_s(4096) + link.latency_s
    assert answers["second"][0] == pytest.approx(expected_s, abs=1e-9)


def test_steps_follow_each_other() -> None:
    """The second step starts when the slowest group has finished the first, and pays its overhead."""
    spec = spec_of()
    step = [(batch_of("a", 4096),), (batch_of("b", 512),)]
    alone_s = run(spec, [step])["a"][0]

    answers = run(spec, [step, [(batch_of("c", 4096),), (batch_of("d", 512),)]])

    assert answers["c"][0] == pytest.approx(2 * alone_s, abs=1e-9)


def test_an_idle_system_wakes_when_its_policy_says() -> None:
    """A step that may start at 0.25 s starts then."""
    spec = spec_of()
    step = [(batch_of("a", 512),), (Batch(()),)]

    late_s = run(spec, [step], [0.25])["a"][0]

    assert late_s == pytest.approx(0.25 + run(spec, [step])["a"][0], abs=1e-9)


def test_a_chunk_that_is_not_the_last_gives_no_token() -> None:
    """Two chunks of one prompt in two steps make one token, after the second."""
    spec = spec_of()
    prompt = Request(request_id="p", num_tokens=4096, arrival_s=0.0)
    chunks = [Batch((prompt.chunk(start, start + 2048),)) for start in (0, 2048)]

    answers = run(spec, [[(chunk,), (Batch(()),)] for chunk in chunks])

    cost = spec.cost
    layers_s = sum(cost.attention_s(chunk.requests) for chunk in chunks) + 2 * (
        cost.dispatch_s(2048) + cost.moe_s(2048) + cost.combine_s(2048)
    )
    assert list(answers) == ["p"]
    assert answers["p"][0] == pytest.approx(2 * OVERHEAD_S + LAYERS * layers_s, abs=1e-9)


def test_the_busiest_device_holds_everybody_up() -> None:
    """A device with twice its share doubles the experts of a large step for both groups."""
    balanced, batch = spec_of(), batch_of("a", 16384)
    skewed = replace(balanced, load=lambda moe_device, layer: 2.0 if (moe_device, layer) == (7, 1) else 1.0)

    late_s = run(skewed, [[(batch,), (Batch(()),)]])["a"][0] - run(balanced, [[(batch,), (Batch(()),)]])["a"][0]

    assert late_s == pytest.approx(balanced.cost.moe_s(16384), abs=1e-9)


def test_devices_must_make_whole_groups() -> None:
    """30 devices are no groups of four."""
    cost = CostModel(shape=deepseek_v32(), hardware=ascend_910c(), tp=4, moe_devices=30)

    with pytest.raises(ConfigError, match="30 devices"):
        LockstepSpec(cost=cost)
