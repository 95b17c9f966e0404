"""A synchronous system on CPUs (5.1): D' = E' processes, each an attention group and a MoE device in one."""

# Shapes: H hidden, R rows on this device, E its experts.

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.host import HostAttention, HostMoE
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Duty, Stamps, Token
from asap_ray.config import ServeConfig
from asap_ray.engine import lockstep
from asap_ray.errors import Closed, ConfigError
from asap_ray.laps import Laps, State
from asap_ray.messages import Events, Registration, Step, decode, encode
from asap_ray.models.model import Model
from asap_ray.protocol import MoEComm, StepQueue, WorkItem
from asap_ray.spec import NUM_SLOTS

STEP_DONE = b""
"""What a worker sends behind the tokens of a step."""


class HostLockstepComm:
    """`LockstepMoEComm` over any `MoEComm`: the items of all groups as one, so that a layer is one super kernel."""

    def __init__(self, comm: MoEComm, num_groups: int) -> None:
        self._comm = comm
        self._early: list[list[deque[WorkItem]]] = [[deque() for _ in range(num_groups)] for _ in range(NUM_SLOTS)]

    async def dispatch_recv(self, slot: int) -> WorkItem:
        """See `LockstepMoEComm`; what comes before its turn is kept: the other slot's, or an idle rank's next layer."""
        early = self._early[slot]
        while not all(early):
            item = await self._comm.dispatch_recv()
            self._early[item.slot][item.dp_group].append(item)
        items = [of_group.popleft() for of_group in early]
        assert len({item.layer for item in items}) == 1, "the ranks are not in step"
        return _merged(items)

    async def combine_send(self, work: WorkItem, results_RH: torch.Tensor) -> None:
        """See `LockstepMoEComm`."""
        items: list[WorkItem] = work.ticket
        sizes = torch.stack([item.num_rows_E for item in items], dim=1).flatten().tolist()
        parts = torch.split(results_RH, sizes)
        for group, item in enumerate(items):
            await self._comm.combine_send(item, torch.cat(parts[group :: len(items)]))


def _merged(items: list[WorkItem]) -> WorkItem:
    """Expert by expert the rows of every group."""
    parts_E = zip(*(item.rows_RH.split(item.num_rows_E.tolist()) for item in items), strict=True)
    return WorkItem(
        dp_group=-1,  # all of them
        slot=items[0].slot,
        layer=items[0].layer,
        num_rows=sum(item.num_rows for item in items),
        num_rows_E=sum(item.num_rows_E for item in items),
        rows_RH=torch.cat([part for of_expert in parts_E for part in of_expert]),
        ticket=items,
        found_s=max(item.found_s for item in items),
    )


class StepPipe:
    """`StepQueue` of a worker whose steps come through a pipe; see `StepSender` for the other end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._is_working = False

    async def step(self) -> tuple[Batch, ...]:
        """See `StepQueue`; a closed pipe means stop."""
        try:
            if self._is_working:
                self._pipe.send_bytes(STEP_DONE)
            self._is_working = True
            return decode(Step, self._pipe.recv_bytes()).batches
        except (EOFError, OSError):
            raise Closed("whoever gives the steps is gone") from None

    async def deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:  # noqa: ARG002
        """See `StepQueue`."""
        self._pipe.send_bytes(encode(Events(tokens, stamps)))


class HostLockstep:
    """Worker i: DP group i and MoE device i in one process, with their buffers and the loop in lockstep."""

    def __init__(self, config: ServeConfig, model: Model, index: int) -> None:
        """`config` gives D' as both `dp_groups` and `moe_devices`.

        Raises:
            ConfigError: another division of the devices.
        """
        parallel = config.parallel
        if parallel.tp != 1 or parallel.dp_groups != parallel.moe_devices:
            raise ConfigError(
                f"a collocated worker is one group and one MoE device: dp_groups=moe_devices, not {parallel}"
            )
        self._num_groups = parallel.dp_groups
        self._threads = config.threads
        self._attention = HostAttention(config, model, index, SoloCollective(), epoch=time.time_ns())
        self._moe = HostMoE(config, model, index)
        self.runtime = self._attention.runtime
        self.runtime.on_close(self._moe.runtime.close)
        self.duty = Duty.zero()

    def registrations(self, fingerprint: dict[str, str]) -> tuple[Registration, Registration]:
        """Where peers find this worker's attention buffer, and its MoE buffer."""
        return self._attention.registration(fingerprint), self._moe.registration(fingerprint)

    def connect(self, ranks: Sequence[Registration], devices: Sequence[Registration]) -> None:
        """Open the buffers of all workers, its own too, in their order."""
        self._attention.connect(devices)
        self._moe.connect(ranks)

    def serve(self, queue: StepQueue) -> None:
        """Run the loop in this thread until `runtime.close()` or the queue closes; raises what ended it otherwise."""
        torch.set_num_threads(self._threads)
        worker = lockstep.Worker(
            runtime=self.runtime,
            attention_comm=self._attention.comm,
            moe_comm=HostLockstepComm(self._moe.comm, self._num_groups),
            attention=self._attention.stage,
            experts=self._moe.stage,
            queue=queue,
            laps=Laps(self.runtime.now, State.IDLE),
            duty=self.duty,
        )
        try:
            drive(lockstep.serve(worker))
        except Closed:
            return
