"""One run in virtual time: a trace through a scheduler and an instance, to a row a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from asap_ray.backends.virtual.door import Deliver
from asap_ray.backends.virtual.instance import VirtualInstance, VirtualSpec
from asap_ray.backends.virtual.runtime import VirtualRuntime
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.cost.model import CostModel
from asap_ray.errors import Overloaded
from asap_ray.scheduler.dual_batch import Assignment
from asap_ray.workload.trace import TraceRequest


class Scheduler(Protocol):
    """What a run needs of a scheduler of an asynchronous instance."""

    def submit(self, request: Request, now: float) -> None:
        """Queue a request. Raises Overloaded: it is refused."""

    def assign(self, now: float) -> list[Assignment]:
        """Every batch that can start now."""

    def wake_at(self, now: float) -> float | None:
        """When `assign` has a batch if nothing else happens."""

    def computed(self, batch: Batch, now: float) -> None:
        """The first pass of a batch has ended."""

    def done(self, group: int, batch: Batch, now: float) -> None:
        """A batch ended."""


Alone = Callable[[int], float]
"""Tokens of a prompt -> seconds of its kernels and transfers if nothing else runs."""

Build = Callable[[VirtualRuntime, VirtualSpec, Deliver], VirtualInstance]
"""Makes the instance: the product's, or one with other primitives."""


@dataclass(slots=True)
class Row:
    """One request of a run, in virtual seconds."""

    num_tokens: int
    arrival_s: float
    queue_s: float = 0.0  # from arrival to the admission of its first batch
    kernel_s: float = 0.0  # after that and inside the layers: what it would take alone, but no more than it took
    stamps: Stamps = field(default_factory=Stamps)  # of its last batch
    ttft_s: float | None = None  # None: refused


@dataclass(frozen=True, slots=True)
class Run:
    """All rows of a run, and what it took."""

    rows: list[Row]
    end_s: float
    num_events: int
    attention_duty: float  # busy share of the attention streams
    moe_duty: float


class OpenLoop:
    """Sends every request of a trace when it is due, whatever was answered, and writes down what came of each."""

    def __init__(self, runtime: VirtualRuntime, trace: Sequence[TraceRequest], overhead_s: float, alone: Alone) -> None:
        """`overhead_s` is what a request takes outside the layers; `alone` is the kernel time of so many tokens."""
        self.rows = [Row(request.input_length, request.timestamp_s) for request in trace]
        self._runtime = runtime
        self._overhead_s = overhead_s
        self._alone = alone
        self._num_left = len(trace)
        self._answered = runtime.signal("answers")

    async def run(self, submit: Callable[[Request], None]) -> None:
        """Submit all, and wait for the last answer."""
        for index, row in enumerate(self.rows):
            await self._runtime.sleep(max(0.0, row.arrival_s - self._runtime.now()))
            try:
                submit(Request(request_id=str(index), num_tokens=row.num_tokens, arrival_s=row.arrival_s))
            except Overloaded:
                self._num_left -= 1
        while self._num_left:
            await self._runtime.park(self._answered)

    def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        """See `Deliver`."""
        now = self._runtime.now()
        for request in batch.requests:
            if not request.past_tokens:
                self.rows[int(request.request_id)].queue_s = now - stamps.total_s - request.arrival_s
        for token in tokens:
            row = self.rows[int(token.request_id)]
            row.ttft_s = now - row.arrival_s + self._overhead_s
            row.kernel_s = min(now - row.arrival_s - row.queue_s, self._alone(row.num_tokens))
            row.stamps = stamps
        self._num_left -= len(tokens)
        self._runtime.wake(self._answered)


class _Driver:
    """Feeds one instance from one scheduler, as the frontend does in a served one."""

    def __init__(self, spec: VirtualSpec, scheduler: Scheduler, trace: Sequence[TraceRequest], build: Build) -> None:
        self.runtime = VirtualRuntime()
        self.instance = build(self.runtime, spec, self._deliver)
        overhead_s = spec.cost.hardware.request_overhead_s
        self.load = OpenLoop(self.runtime, trace, overhead_s, partial(alone_s, spec.cost))
        self._scheduler = scheduler
        self._group_of: dict[int, int] = {}

    async def run(self) -> None:
        """Run the whole trace."""
        self.runtime.spawn(self.instance.serve())
        await self.load.run(self._submit)

    def _submit(self, request: Request) -> None:
        self._scheduler.submit(request, self.runtime.now())
        self._assign()

    def _assign(self) -> None:
        now = self.runtime.now()
        for assignment in self._scheduler.assign(now):
            self._group_of[id(assignment.batch)] = assignment.group
            self.instance.doors[assignment.group].put(assignment.batch)
        wake_at = self._scheduler.wake_at(now)
        if wake_at is not None:
            self.runtime.call_at(wake_at, self._assign)

    def _deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        self.load.deliver(batch, tokens, stamps)
        self._scheduler.computed(batch, self.runtime.now())
        self._scheduler.done(self._group_of.pop(id(batch)), batch, self.runtime.now())
        self._assign()


def alone_s(cost: CostModel, num_tokens: int) -> float:
    """Kernels and transfers of a whole prompt that has the instance to itself, one after another, over all layers."""
    experts_s = cost.dispatch_recv_s(num_tokens) + cost.moe_s(num_tokens) + cost.combine_s(num_tokens)
    return cost.prompt_s(num_tokens) + cost.shape.num_layers * experts_s


def simulate(
    spec: VirtualSpec, scheduler: Scheduler, trace: Sequence[TraceRequest], build: Build = VirtualInstance
) -> Run:
    """Run a trace, sorted by time, to its last answer."""
    driver = _Driver(spec, scheduler, trace, build)
    driver.runtime.run(driver.run())
    end_s = max(driver.runtime.now(), 1e-9)
    ranks, devices = driver.instance.ranks, driver.instance.devices
    return Run(
        rows=driver.load.rows,
        end_s=end_s,
        num_events=driver.runtime.num_events,
        attention_duty=sum(rank.duty.compute_s for rank in ranks) / len(ranks) / end_s,
        moe_duty=sum(device.duty.compute_s for device in devices) / len(devices) / end_s,
    )
