"""Virtual time: the runtime, the primitives' seconds, and the two levels of detail."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from asap_ray.backends.virtual.comm import Ready, round_robin
from asap_ray.backends.virtual.instance import VirtualInstance, VirtualSpec
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.backends.virtual.stages import Rows
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.hardware import LINKS, ascend_910c
from asap_ray.cost.model import CostModel
from asap_ray.cost.shapes import deepseek_v32
from asap_ray.cost.skew import zipf
from asap_ray.engine import attention, experts
from asap_ray.errors import PeerTimeout
from asap_ray.evaluation.systems import SYSTEMS, paper_setup
from asap_ray.spec import ParallelSpec, paper
from asap_ray.workload.lengths import paper_trace


def spec_of(dp_groups: int = 4, num_layers: int = 61, link: str = "supernode") -> VirtualSpec:
    """The paper's instance, or one with fewer groups or layers."""
    parallel = ParallelSpec(dp_groups=dp_groups, tp=4, moe_devices=16)
    hardware = replace(ascend_910c(), link=LINKS[link])
    shape = replace(deepseek_v32(), num_layers=num_layers)
    cost = CostModel(shape=shape, hardware=hardware, tp=4, moe_devices=16)
    return VirtualSpec(cost=cost, parallel=parallel, prefill=paper().prefill)


def batch_of(name: str, *lengths: int) -> Batch:
    """A batch of prompts of these lengths."""
    return Batch(
        tuple(Request(request_id=f"{name}.{n}", num_tokens=length, arrival_s=0.0) for n, length in enumerate(lengths))
    )


def ends_of(spec: VirtualSpec, batches: list[tuple[int, Batch]]) -> dict[str, float]:
    """When each first token comes, in virtual seconds, if all batches are at their doors at time 0."""
    runtime, ends = VirtualRuntime(), {}
    answered = runtime.signal("answers")

    def deliver(_batch: Batch, tokens: tuple[Token, ...], _stamps: Stamps) -> None:
        ends.update({token.request_id: runtime.now() for token in tokens})
        runtime.wake(answered)

    async def main() -> None:
        instance = VirtualInstance(runtime, spec, deliver)
        for group, batch in batches:
            instance.doors[group].put(batch)
        runtime.spawn(instance.serve())
        while len(ends) < sum(len(batch.requests) for _, batch in batches):
            await runtime.park(answered)

    runtime.run(main())
    return ends


def layer_s(spec: VirtualSpec, batch: Batch) -> float:
    """One layer of a batch that meets nobody: attention, dispatch, copy, experts, results."""
    cost, num_tokens = spec.cost, batch.num_tokens
    parts = (cost.dispatch_s, cost.dispatch_recv_s, cost.moe_s, cost.combine_s)
    return cost.attention_s(batch.requests) + sum(part(num_tokens) for part in parts)


@pytest.mark.parametrize("is_pooled", [True, False])
def test_a_lone_batch_takes_the_sum_of_its_parts(is_pooled: bool) -> None:
    """61 layers of attention, dispatch, copy, experts and results, one after another."""
    spec, batch = replace(spec_of(), is_pooled=is_pooled), batch_of("a", 1000, 3000)

    ends = ends_of(spec, [(2, batch)])

    assert ends == pytest.approx(dict.fromkeys(("a.0", "a.1"), 61 * layer_s(spec, batch)))


def test_without_overlap_a_lone_batch_takes_as_long() -> None:
    """5.5.2: one stream on a MoE device costs nothing while it has one item at a time."""
    spec, batch = spec_of(), batch_of("a", 4000)
    one_stream = replace(spec, loops=(attention.serve, experts.serve_sequential))

    assert ends_of(one_stream, [(0, batch)]) == pytest.approx(ends_of(spec, [(0, batch)]))


def test_without_super_kernel_each_layer_pays_a_launch() -> None:
    """5.5.3: 220 us a layer, 13.4 ms in 61 layers."""
    spec, batch = spec_of(), batch_of("a", 4000)

    late_s = ends_of(replace(spec, has_super_kernel=False), [(0, batch)])["a.0"] - ends_of(spec, [(0, batch)])["a.0"]

    assert late_s == pytest.approx(61 * 220e-6)


def test_groups_do_not_wait_for_each_other() -> None:
    """A short batch ends as if it were alone although another group has 32k tokens: there is no barrier (Figure 1b)."""
    spec, short = spec_of(), batch_of("short", 1000)

    ends = ends_of(spec, [(0, batch_of("long", 32_000)), (1, short)])

    # Its items may queue behind one of the long batch's in the MoE devices, 5.9 ms, a few times.
    alone_s = 61 * layer_s(spec, short)
    assert alone_s < ends["short.0"] < 2 * alone_s
    assert ends["long.0"] > 10 * alone_s


def test_two_batches_in_flight_share_a_group() -> None:
    """3.3.2: one's attention runs during the other's experts, so both end well before one after the other would."""
    spec, batch = spec_of(dp_groups=1), batch_of("a", 4000)
    other = batch_of("b", 4000)

    ends = ends_of(spec, [(0, batch), (0, other)])

    alone_s = 61 * layer_s(spec, batch)
    stream_s = 61 * (spec.cost.attention_s(batch.requests) + spec.cost.dispatch_s(4000))
    assert max(ends.values()) < 2 * alone_s
    assert max(ends.values()) >= 2 * stream_s


@pytest.mark.parametrize("num_layers", [5, 9])
def test_ranks_and_pool_agree_on_a_mixed_load(num_layers: int) -> None:
    """Every (i, j) and e simulated, or a group and a pool as one each: the same ends under balance."""
    spec = spec_of(num_layers=num_layers)
    batches = [(n % 4, batch_of(f"{n}", *lengths)) for n, lengths in enumerate(([700] * 3, [9000], [20_000], [31]))]
    batches += [(n % 4, batch_of(f"{n}", 2048 + 500 * n)) for n in range(4, 16)]

    pooled, ranks = ends_of(spec, batches), ends_of(replace(spec, is_pooled=False), batches)

    assert ranks == pytest.approx(pooled, rel=0.02)


@pytest.mark.parametrize("rate", [4, 16])
def test_ranks_and_pool_agree_on_the_papers_trace(rate: float) -> None:
    """Mean TTFT of the paper's instance with 6 of its layers, within 2 %, at both rates."""
    setup = paper_setup()
    shorter = replace(setup, shape=replace(setup.shape, num_layers=6))
    trace = paper_trace(rate, 48 / rate, seed=2)

    def mean_s(is_pooled: bool) -> float:
        run = SYSTEMS["asap"](replace(shorter, is_pooled=is_pooled), trace)
        return fmean(row.ttft_s or 0.0 for row in run.rows)

    assert mean_s(is_pooled=False) == pytest.approx(mean_s(is_pooled=True), rel=0.02)


def test_a_skewed_pool_is_as_slow_as_its_busiest_device() -> None:
    """With one batch under way nobody overtakes: ranks and pool agree on the cost of imbalance."""
    spec, batch = spec_of(num_layers=7), batch_of("a", 8000)
    skewed = replace(spec, load=zipf(spec.cost.shape, 0.8, seed=3).load(16))

    pooled, ranks = ends_of(skewed, [(0, batch)]), ends_of(replace(skewed, is_pooled=False), [(0, batch)])

    assert ranks == pytest.approx(pooled)
    assert pooled["a.0"] > ends_of(spec, [(0, batch)])["a.0"]


def test_latency_of_the_link_is_paid_twice_a_layer() -> None:
    """4.4: a flag over RDMA comes 300 us later, there and back; what the NIC has brought nobody copies."""
    spec, batch = spec_of(link="rdma"), batch_of("a", 4000)

    ends = ends_of(spec, [(0, batch)])

    copied_s = spec.cost.dispatch_recv_s(4000) - spec.cost.hardware.link.launch_s
    assert ends["a.0"] == pytest.approx(61 * (layer_s(spec, batch) - copied_s + 2 * 300e-6))


@pytest.mark.parametrize("is_pooled", [True, False])
def test_a_lone_batch_over_rdma_is_the_same_rank_by_rank(is_pooled: bool) -> None:
    """T ranks bring a device a T-th each, E devices a rank an E-th each: the pool's bytes."""
    spec, batch = replace(spec_of(num_layers=3, link="rdma"), is_pooled=is_pooled), batch_of("a", 4000)

    ends = ends_of(spec, [(0, batch)])

    copied_s = spec.cost.dispatch_recv_s(4000) - spec.cost.hardware.link.launch_s
    assert ends["a.0"] == pytest.approx(3 * (layer_s(spec, batch) - copied_s + 2 * 300e-6))


def test_a_network_card_carries_one_message_after_another() -> None:
    """Two batches in flight over Ethernet: the group's link, not its attention, says when the last one ends."""
    spec = spec_of(dp_groups=1, link="ethernet")
    batches = [(0, batch_of(name, 4000)) for name in ("a", "b")]

    ends = ends_of(spec, batches)

    results_s = spec.cost.combine_s(4000) - spec.cost.hardware.link.launch_s
    assert results_s > spec.cost.attention_s(batches[0][1].requests)
    assert max(ends.values()) >= 61 * 2 * results_s


def test_a_chunk_that_is_not_the_last_gives_no_token() -> None:
    """Two chunks of one prompt, in order in one group: one token, from the second."""
    prompt = batch_of("a", 6000).requests[0]
    chunks = [Batch((prompt.chunk(0, 4000),)), Batch((prompt.chunk(4000, 6000),))]
    runtime, tokens = VirtualRuntime(), []
    answered = runtime.signal("answers")

    def deliver(batch: Batch, delivered: tuple[Token, ...], _stamps: Stamps) -> None:
        tokens.append((batch.num_tokens, len(delivered)))
        runtime.wake(answered)

    async def main() -> None:
        instance = VirtualInstance(runtime, spec_of(dp_groups=1), deliver)
        for chunk in chunks:
            instance.doors[0].put(chunk)
        runtime.spawn(instance.serve())
        while len(tokens) < 2:
            await runtime.park(answered)

    runtime.run(main())

    assert tokens == [(4000, 0), (2000, 1)]


def test_round_robin_takes_the_next_region() -> None:
    """As the devices' scan does: the first ready place after the one taken last, round and round."""
    rows = Rows(batch_of("a", 1), 1)
    ready = [Ready(group, slot, 0, rows, 0.0) for group, slot in ((2, 1), (0, 0), (1, 1))]  # places 5, 0, 3

    taken = [round_robin(ready, last) for last in (-1, 0, 3, 5)]

    assert taken == [1, 2, 0, 1]


def test_time_stops_with_the_names_of_those_who_wait() -> None:
    """A deadlock is an error that says who waits for what, not a run that never ends."""
    runtime = VirtualRuntime()

    async def main() -> None:
        await runtime.park(runtime.signal("a reply that nobody sends"))

    with pytest.raises(PeerTimeout, match="a reply that nobody sends"):
        runtime.run(main())


def test_an_error_in_a_stream_ends_the_run() -> None:
    """It is raised by `run`, and what still runs is closed."""
    runtime, closed = VirtualRuntime(), []

    async def sleeper() -> None:
        try:
            await runtime.sleep(9.0)
        finally:
            closed.append(runtime.now())

    async def failing() -> None:
        await runtime.sleep(1.0)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        runtime.run(runtime.gather(sleeper(), failing()))

    assert closed == [1.0]


def test_a_queue_holds_no_more_than_its_capacity() -> None:
    """The writer of a one-place queue is never more than one value ahead."""
    runtime, log = VirtualRuntime(), []
    queue = runtime.queue(1)

    async def write() -> None:
        for value in range(3):
            await queue.put(value)
            log.append(("put", value, runtime.now()))

    async def read() -> None:
        for _ in range(3):
            await runtime.sleep(1.0)
            log.append(("got", await queue.get(), runtime.now()))

    runtime.run(runtime.gather(write(), read()))

    assert log == [("put", 0, 0.0), ("got", 0, 1.0), ("put", 1, 1.0), ("got", 1, 2.0), ("put", 2, 2.0), ("got", 2, 3.0)]
