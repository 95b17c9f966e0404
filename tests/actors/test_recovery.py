"""Processes of a serving instance are killed or stopped during a burst: every request gets the right answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from asap_ray.actors.placement import device_names, group_names
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.served_model import served_model
from asap_ray.actors.service import PrefillService
from asap_ray.actors.stragglers import SLOW, watch_stragglers
from asap_ray.batch import Request
from asap_ray.config import ServeConfig

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
PROMPTS = [[(7 * n + k) % 512 for k in range(1 + n % 60)] for n in range(40)]


class Serving:
    """One group of two ranks and two MoE devices behind a service, watched as a frontend does."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.instance = PrefillInstance(config, served_model(config))
        self.service = PrefillService(config, served_model(config), self.instance)
        self.num_asked = 0
        self.absent: set[str] = set()

    async def start(self) -> None:
        """Until it serves."""
        await self.instance.start()
        self.watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End everything."""
        self.watching.cancel()
        await asyncio.gather(self.watching, return_exceptions=True)
        await self.service.close()
        await self.instance.stop()

    async def burst(self, during: Callable[[], Awaitable[None]]) -> list[int]:
        """First tokens of all prompts; `during` happens when a quarter of them is answered."""
        waiting = [asyncio.create_task(self._ask(ids)) for ids in PROMPTS]
        pending = set(waiting)
        while len(pending) > 3 * len(waiting) // 4:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await during()
        while pending:
            self.absent |= set(self.instance.missing())
            _, pending = await asyncio.wait(pending, timeout=0.1)
        return [task.result() for task in waiting]

    async def until_ready(self) -> None:
        """Until nobody is missing."""
        async with asyncio.timeout(60):
            while self.instance.missing():
                await asyncio.sleep(0.1)

    async def _ask(self, ids: list[int]) -> int:
        self.num_asked += 1
        token_ids = torch.tensor(ids, dtype=torch.int32).numpy().tobytes()
        prompt = Request(request_id=f"r{self.num_asked}", num_tokens=len(ids), arrival_s=0.0, token_ids=token_ids)
        (event,) = [event async for event in self.service.generate([prompt])]
        return event.token.token_id

    async def _watch(self) -> None:
        async for change in self.instance.watch():
            if change.lost:
                self.service.lose(change.group, change.lost)
            else:
                self.service.restore(change.group)


@pytest.fixture(scope="module")
def serving(cluster: None, loop: asyncio.Runner, make_config: Callable[..., ServeConfig]) -> Iterator[Serving]:
    """Serves all tests of this file; each leaves it ready."""
    assert cluster is None
    serving = Serving(make_config("mortal", 1, 2, 2))
    loop.run(serving.start())
    yield serving
    loop.run(serving.stop())


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> list[int]:
    """Greedy first tokens by transformers."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.inference_mode():
        return [int(model(torch.tensor([ids])).logits[0, -1].argmax()) for ids in PROMPTS]


def follower_pid(group: Any) -> int:
    """The process of rank 1; runs in the group's actor."""
    pid: int = ray.get(group._followers[0].__ray_call__.remote(lambda _: os.getpid()))
    return pid


def own_pid(_: Any) -> int:
    """Runs in an actor."""
    return os.getpid()


@pytest.mark.parametrize(
    ("kind", "pid_of", "number"),
    [
        pytest.param(device_names, own_pid, signal.SIGKILL, id="a MoE device dies"),
        pytest.param(group_names, own_pid, signal.SIGKILL, id="rank 0 dies"),
        pytest.param(group_names, follower_pid, signal.SIGKILL, id="rank 1 dies", marks=pytest.mark.thorough),
        pytest.param(device_names, own_pid, signal.SIGSTOP, id="a MoE device hangs", marks=pytest.mark.thorough),
        pytest.param(group_names, follower_pid, signal.SIGSTOP, id="rank 1 hangs", marks=pytest.mark.thorough),
    ],
)
def test_every_request_gets_its_answer(
    run: Run,
    serving: Serving,
    reference: list[int],
    kind: Callable[[ServeConfig], list[str]],
    pid_of: Callable[[Any], int],
    number: signal.Signals,
) -> None:
    """The lost device is named while it is away, nobody is refused, and the instance is ready again."""
    name = kind(serving.config)[0]
    serving.absent.clear()

    async def scenario() -> list[int]:
        pid = await ray.get_actor(name, namespace="serve").__ray_call__.remote(pid_of)

        async def strike() -> None:
            os.kill(pid, number)

        answers = await serving.burst(strike)
        await serving.until_ready()
        return answers

    assert run(scenario()) == reference
    assert any(absent.startswith(name) for absent in serving.absent)


@contextlib.contextmanager
def twenty_times_slower(pid: int) -> Iterator[None]:
    """A process that runs for 5 of 100 ms while the block runs."""
    is_over = threading.Event()

    def halt_and_go() -> None:
        while not is_over.wait(0.005):
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(0.095)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=halt_and_go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_slow_device_is_named_within_a_minute(
    run: Run, serving: Serving, reference: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """By the metric and in the log, while every answer is right, late as it is; no deadline passes, nobody is lost."""
    name = device_names(serving.config)[1]
    metrics, is_told = serving.service.metrics, asyncio.Event()
    serving.absent.clear()

    def report(device: str, times: float) -> None:
        metrics.slowness(device, times)
        if device == name and times >= SLOW:
            is_told.set()

    async def nothing() -> None:
        pass

    async def scenario() -> list[list[int]]:
        pid = await ray.get_actor(name, namespace="serve").__ray_call__.remote(own_pid)
        watching = asyncio.create_task(watch_stragglers(serving.instance.paces, report))
        answers = []
        try:
            with twenty_times_slower(pid):
                telling = asyncio.create_task(asyncio.wait_for(is_told.wait(), 60))
                while not telling.done():
                    answers.append(await serving.burst(nothing))
                await telling
        finally:
            watching.cancel()
        return answers

    with caplog.at_level(logging.WARNING):
        answers = run(scenario())
    metrics.report_devices(serving.instance.vitals)
    exposed = metrics.exposition().decode().splitlines()
    (slowness,) = (line for line in exposed if line.startswith("asap_device_slowness{") and f'"{name}"' in line)

    assert answers == [reference] * len(answers)
    assert serving.absent == set()
    assert float(slowness.rpartition(" ")[2]) >= SLOW
    assert [record.message[: len(name) + 8] for record in caplog.records] == [f"{name} is slow"]
