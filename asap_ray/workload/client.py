"""Open-loop replay: every request goes out when the trace says so, however slow the answers are.

A TTFT counts from the time a request was due, not from when it left: a client that falls behind makes
answers look late, never early. How late it was is part of the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asap_ray.workload.prompts import prompt_ids
from asap_ray.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """How a request ended. `ttft_parts_s` is the server's own account of the TTFT, where it gives one."""

    status: int  # HTTP's; 0 where none was received
    error: str | None = None
    ttft_parts_s: Mapping[str, float] = field(default_factory=dict)


class Target(Protocol):
    """What is put under load: an HTTP endpoint, or a Serve handle."""

    async def send(self, prompt_ids: list[int], max_tokens: int, on_first_token: Callable[[], None]) -> Reply:
        """Complete a prompt; call `on_first_token` when the first token is here. May raise anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send, and how long to wait for each answer. Times of `requests` count from the start."""

    requests: Sequence[TraceRequest]
    vocab_size: int
    seed: int = 0
    max_tokens: int = 1  # of each answer; a prefill instance is asked for the first token
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request as the client saw it. Failed if `error` is set."""

    index: int  # in the plan
    input_length: int
    due_s: float  # from the start of the replay
    lateness_s: float  # how long after that it left
    ttft_s: float | None  # from `due_s`; None if no token came
    status: int
    error: str | None
    ttft_parts_s: Mapping[str, float]


async def replay(plan: Plan, target: Target, on_result: Callable[[Result], None]) -> list[Result]:
    """Send the plan's requests on schedule, at once where it is late; results in the plan's order.

    Failures are results, never raised. `on_result` gets each as it ends, so that a caller who is
    interrupted keeps what there is.
    """
    now = asyncio.get_running_loop().time
    run = _Run(plan, target, on_result, start_s=now())
    async with asyncio.TaskGroup() as tasks:
        sent = []
        for index, request in enumerate(plan.requests):
            prompt = prompt_ids(request, index, plan.vocab_size, plan.seed)  # before it is due, not when
            await asyncio.sleep(run.start_s + request.timestamp_s - now())
            sent.append(tasks.create_task(run.send(index, prompt)))
    return [task.result() for task in sent]


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    target: Target
    on_result: Callable[[Result], None]
    start_s: float  # of the event loop's clock

    async def send(self, index: int, prompt: list[int]) -> Result:
        due_s = self.plan.requests[index].timestamp_s
        sent_s = self._elapsed_s()
        first_token_s: list[float] = []
        reply = await self._reply(prompt, lambda: first_token_s.append(self._elapsed_s()))
        result = Result(
            index=index,
            input_length=len(prompt),
            due_s=due_s,
            lateness_s=sent_s - due_s,
            ttft_s=first_token_s[0] - due_s if first_token_s else None,
            status=reply.status,
            error=reply.error if reply.error or first_token_s else "the answer had no token",
            ttft_parts_s=reply.ttft_parts_s,
        )
        self.on_result(result)
        return result

    async def _reply(self, prompt: list[int], on_first_token: Callable[[], None]) -> Reply:
        try:
            async with asyncio.timeout(self.plan.timeout_s):
                return await self.target.send(prompt, self.plan.max_tokens, on_first_token)
        except TimeoutError:
            return Reply(0, f"no answer within {self.plan.timeout_s:g} s")
        except Exception as error:  # the load must go on, whatever one request meets
            return Reply(0, f"{type(error).__name__}: {error}")

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self.start_s
