"""`PrefillService`: overload, lost groups, clients that leave, stopping. Nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.service import PrefillService
from asap_ray.actors.waiter import TokenEvent
from asap_ray.config import ServeConfig
from asap_ray.errors import DeviceLost, Overloaded, RequestError, Unavailable
from tests.http.asking import queue, request, tokens_of
from tests.http.echo_groups import EchoGroups


@pytest.fixture
def gated(groups: EchoGroups) -> EchoGroups:
    """Groups that take batches and hold them."""
    groups.gate = asyncio.Event()
    return groups


async def fill(service: PrefillService, groups: EchoGroups) -> list[asyncio.Task[list[TokenEvent]]]:
    """Occupy both slots of both groups."""
    tasks = [asyncio.create_task(tokens_of(service, [request(f"running-{k}")])) for k in range(4)]
    for _ in tasks:
        await groups.started.get()
    return tasks


async def heard_of(events: AsyncGenerator[TokenEvent, None], num_tokens: int) -> None:
    """A client that has heard so many tokens; one that has heard none waits for its first."""
    for _ in range(max(1, num_tokens)):
        await anext(events)


def open_gate(groups: EchoGroups) -> None:
    """Let the batches run."""
    assert groups.gate
    groups.gate.set()


def test_a_full_queue_says_when_to_come_back(config: ServeConfig, model: ServedModel, gated: EchoGroups) -> None:
    """Four run, four wait, the ninth is told; the eight are served."""

    async def scenario() -> tuple[float, int]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated) + [await queue(service, f"queued-{k}") for k in range(4)]
        with pytest.raises(Overloaded) as refused:
            await tokens_of(service, [request("ninth")])
        open_gate(gated)
        return refused.value.retry_after_s, sum(map(len, await asyncio.gather(*tasks)))

    retry_after_s, num_tokens = asyncio.run(scenario())
    assert retry_after_s > 0
    assert num_tokens == 8


def test_prompts_of_one_client_are_queued_all_or_none(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """Of three prompts two would fit; none of them runs."""

    async def scenario() -> set[str]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated) + [await queue(service, f"queued-{k}") for k in range(2)]
        with pytest.raises(Overloaded):
            await tokens_of(service, [request(f"late-{k}") for k in range(3)])
        open_gate(gated)
        await asyncio.gather(*tasks)
        return {r.request_id for batch in gated.batches for r in batch.requests}

    assert not [name for name in asyncio.run(scenario()) if name.startswith("late")]


def test_more_prompts_than_the_queue_holds_are_the_clients_mistake(
    config: ServeConfig, model: ServedModel, groups: EchoGroups
) -> None:
    """A retry would not help, so it is no Overloaded: the queue holds 4 prompts, and 128 tokens."""
    service = PrefillService(config, model, groups)
    with pytest.raises(RequestError, match="5 prompts in one request; the queue holds 4"):
        asyncio.run(tokens_of(service, [request(str(k)) for k in range(5)]))
    with pytest.raises(RequestError, match="3 prompts of 150 tokens in one request; the queue holds 128"):
        asyncio.run(tokens_of(service, [request(str(k), num_tokens=50) for k in range(3)]))


def test_a_client_that_leaves_the_queue_is_never_run(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """Its prompt is dropped, its neighbour's is served."""

    async def scenario() -> list[str]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated)
        leaving, staying = await queue(service, "leaving"), await queue(service, "staying")
        leaving.cancel()
        open_gate(gated)
        await asyncio.gather(*tasks, staying)
        return [r.request_id for batch in gated.batches[4:] for r in batch.requests]

    assert asyncio.run(scenario()) == ["staying"]


def test_a_long_prompt_runs_in_pieces_on_one_group(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """A turn is 32 tokens here: 64 are two pieces, and one answer that continues where the prompt began."""

    async def scenario() -> list[int]:
        service = PrefillService(replace(config, policy="asap"), model, groups)
        return [event.token.token_id for event in await tokens_of(service, [request("long", 64, max_tokens=3)])]

    assert asyncio.run(scenario()) == [7, 7, 7]
    assert [[r.num_tokens for r in batch.requests] for batch in groups.batches] == [[32], [32]]
    assert groups.started.get_nowait() == groups.started.get_nowait()


def test_a_solo_that_leaves_the_queue_lets_go_of_its_group(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """A slot is free but kept for a solo prompt; when its client leaves, the prompt behind it starts at once."""

    async def scenario() -> list[str]:
        service = PrefillService(config, model, gated)
        tasks = [await queue(service, f"running-{k}") for k in range(3)]
        solo = await queue(service, "solo", num_tokens=40)
        tasks.append(await queue(service, "behind"))
        solo.cancel()
        await asyncio.gather(solo, return_exceptions=True)
        await asyncio.sleep(0)  # the batch reaches its group
        started = [r.request_id for batch in gated.batches for r in batch.requests]
        open_gate(gated)
        await asyncio.gather(*tasks)
        return started

    assert asyncio.run(scenario()) == ["running-0", "running-1", "running-2", "behind"]


@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_a_client_that_leaves_ends_its_decode_with_the_next_token(
    config: ServeConfig, model: ServedModel, groups: EchoGroups, num_tokens: int
) -> None:
    """Whatever it has heard of 64; its blocks are free, its neighbour goes on."""
    groups.num_groups, groups.num_blocks, groups.block_size = 1, 8, config.kv_cache.block_size

    async def scenario() -> tuple[int, int, int]:
        service = PrefillService(config, model, groups)
        service.open_caches()
        leaving = service.generate([request("leaving", max_tokens=64)])
        heard = asyncio.create_task(heard_of(leaving, num_tokens))
        await groups.started.get()
        staying = asyncio.create_task(tokens_of(service, [request("staying", max_tokens=40)]))
        if num_tokens:
            await heard
        heard.cancel()
        await asyncio.gather(heard, return_exceptions=True)
        await leaving.aclose()
        num_answered = len(await staying)
        await service.close()
        num_more = groups.made["leaving"] - groups.aborted[0, "leaving"]
        return num_more, num_answered, service._scheduler.caches[0].num_held

    assert asyncio.run(scenario()) == (1, 40, 0)


def test_a_client_that_leaves_before_its_group_has_the_batch_ends_it_too(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """A group that was told too early is told again, with the first token that nobody waits for."""

    async def scenario() -> int:
        service = PrefillService(config, model, gated)
        leaving = asyncio.create_task(tokens_of(service, [request("leaving", max_tokens=64)]))
        await gated.started.get()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gated.aborted.clear()
        open_gate(gated)
        await service.close()
        return gated.made["leaving"]

    assert asyncio.run(scenario()) == 2


def test_a_client_that_leaves_a_running_batch_frees_its_slot(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """A pass cannot be stopped halfway; the slot is free after it."""

    async def scenario() -> int:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated)
        tasks[0].cancel()
        open_gate(gated)
        await asyncio.gather(*tasks[1:], await queue(service, "next"))
        await service.close()
        return gated.num_finished

    assert asyncio.run(scenario()) == 5


def test_a_lost_group_fails_readiness(config: ServeConfig, model: ServedModel, gated: EchoGroups) -> None:
    """The reason reaches /ready, until its owner has brought it back."""

    async def scenario() -> tuple[str, ...]:
        service = PrefillService(config, model, gated)
        await fill(service, gated)
        gated.lost_group = 1
        open_gate(gated)
        while not gated.asked:
            await asyncio.sleep(0)
        return service.missing()

    assert asyncio.run(scenario()) == ("group 1 (group 1 is gone)",)


def test_a_group_that_failed_a_batch_but_serves_takes_others(
    config: ServeConfig, model: ServedModel, groups: EchoGroups
) -> None:
    """As when another frontend has taken its blocks over: nobody kills it."""
    groups.failure, groups.serves_on = DeviceLost("another frontend has taken over"), True

    async def scenario() -> list[TokenEvent]:
        service = PrefillService(config, model, groups)
        with pytest.raises(Unavailable):
            await tokens_of(service, [request("refused")])
        groups.failure = None
        while service.missing():
            await asyncio.sleep(0)
        return await tokens_of(service, [request("served")])

    assert len(asyncio.run(scenario())) == 1
    assert groups.reports == []


def test_a_group_that_does_not_get_on_is_reported(
    config: ServeConfig, model: ServedModel, gated: EchoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its control calls may answer for ever while its loop stands still."""
    monkeypatch.setattr("asap_ray.actors.service.DEADLINES", 0.002)

    async def scenario() -> None:
        service = PrefillService(config, model, gated)
        with pytest.raises(Unavailable):
            await tokens_of(service, [request("first")])
        while not gated.reports:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert gated.reports == [(0, "group 0 produced nothing within 0.02 s")]


def test_what_a_lost_group_ran_runs_on_the_other_one(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """Both of its batches; every client has its answer once."""

    async def scenario() -> list[int]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated) + [await queue(service, "queued")]
        gated.lost_group = 1
        open_gate(gated)
        return [len(events) for events in await asyncio.gather(*tasks)]

    assert asyncio.run(scenario()) == [1] * 5
    assert sorted(batch.requests[0].request_id for batch in gated.batches[4:]) == ["queued", "running-1", "running-3"]


def test_with_one_group_its_requests_wait_until_it_is_back(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """D = 1: what ran and what comes meanwhile is answered after `restore`."""
    gated.num_groups = 1

    async def scenario() -> list[int]:
        service = PrefillService(config, model, gated)
        running = await queue(service, "running")
        await gated.started.get()
        gated.is_recovering, gated.absent = True, ("asap:attention:0 (process 7 ended)",)
        service.lose(0, "process 7 ended")
        waiting = await queue(service, "waiting")
        assert not running.done()
        gated.is_recovering, gated.absent = False, ()
        open_gate(gated)
        service.restore(0)
        return [len(events) for events in await asyncio.gather(running, waiting)]

    assert asyncio.run(scenario()) == [1, 1]


def test_a_request_is_run_again_once(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """A prompt that two groups failed on is refused with the reason; perhaps it is what kills them."""
    groups.failure = DeviceLost("moe 1 is gone")

    async def scenario() -> None:
        service = PrefillService(config, model, groups)
        with pytest.raises(Unavailable, match="group 1 failed: moe 1 is gone"):
            await tokens_of(service, [request("first")])

    asyncio.run(scenario())
    assert groups.asked == [0, 1]


def test_an_answer_that_has_begun_is_not_run_again(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Its client has tokens that another run need not repeat."""
    groups.failure, groups.fail_after = DeviceLost("moe 1 is gone"), 1

    async def scenario() -> None:
        await tokens_of(PrefillService(config, model, groups), [request("first", max_tokens=3)])

    with pytest.raises(Unavailable, match="group 0 failed: moe 1 is gone"):
        asyncio.run(scenario())
    assert len(groups.batches) == 1


def test_a_client_that_left_is_not_run_again(config: ServeConfig, model: ServedModel, gated: EchoGroups) -> None:
    """Nobody waits for what the lost group ran."""
    gated.num_groups = 1

    async def scenario() -> list[str]:
        service = PrefillService(config, model, gated)
        leaving, staying = await queue(service, "leaving"), await queue(service, "staying")
        for _ in range(2):
            await gated.started.get()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        service.lose(0, "gone")
        open_gate(gated)
        service.restore(0)
        await staying
        return [batch.requests[0].request_id for batch in gated.batches[2:]]

    assert asyncio.run(scenario()) == ["staying"]


def test_nobody_waits_for_what_is_lost_for_good(config: ServeConfig, model: ServedModel, gated: EchoGroups) -> None:
    """What runs and what is queued is told why, long before the deadline; and so is who comes next."""

    async def scenario() -> list[object]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated) + [await queue(service, "queued")]
        gated.absent = ("asap:moe:1 (process 7 ended)",)
        service.give_up("DeviceLost: asap:moe:1")
        tasks.append(await queue(service, "late"))
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(scenario())
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 6
    assert {str(outcome) for outcome in outcomes[:5]} == {"not ready: DeviceLost: asap:moe:1"}


def test_an_unexpected_error_tells_its_kind_only(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """What it says may hold paths or weights; the log has it."""
    groups.failure = RuntimeError("/secret/path")
    with pytest.raises(Unavailable) as failed:
        asyncio.run(tokens_of(PrefillService(config, model, groups), [request("first")]))

    assert str(failed.value) == "group 1 failed: RuntimeError"


def test_a_batch_that_ends_early_leaves_nobody_waiting(
    config: ServeConfig, model: ServedModel, groups: EchoGroups
) -> None:
    """A stream without its last token is a failure, not a wait."""
    groups.max_passes = 1
    with pytest.raises(Unavailable, match="before its last token"):
        asyncio.run(tokens_of(PrefillService(config, model, groups), [request("first", max_tokens=3)]))


def test_every_wait_has_a_deadline(
    config: ServeConfig, model: ServedModel, gated: EchoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some deadlines without a token end a request; here 0.002 of one of 10 s."""
    monkeypatch.setattr("asap_ray.actors.service.DEADLINES", 0.002)
    with pytest.raises(Unavailable, match=r"within 0\.02 s"):
        asyncio.run(tokens_of(PrefillService(config, model, gated), [request("first")]))


def test_stopping_finishes_what_runs_and_refuses_the_rest(
    config: ServeConfig, model: ServedModel, gated: EchoGroups
) -> None:
    """SIGTERM: running batches answer, queued and new prompts get Unavailable."""

    async def scenario() -> tuple[list[object], int]:
        service = PrefillService(config, model, gated)
        tasks = await fill(service, gated) + [await queue(service, "queued")]
        closing = asyncio.create_task(service.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="stopping"):
            await tokens_of(service, [request("new")])
        open_gate(gated)
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True), gated.num_finished

    outcomes, num_finished = asyncio.run(scenario())
    assert [type(outcome) for outcome in outcomes] == [list] * 4 + [Unavailable]
    assert num_finished == 4


def test_short_prompts_share_a_batch(config: ServeConfig, model: ServedModel, groups: EchoGroups) -> None:
    """Length-aware batching reaches the groups: two prompts of 8 tokens make one batch of 16 (3.3.1)."""
    prompts = [request("a", num_tokens=8), request("b", num_tokens=8)]
    asyncio.run(tokens_of(PrefillService(config, model, groups), prompts))

    assert [batch.num_tokens for batch in groups.batches] == [16]
