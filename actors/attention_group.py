"""An attention DP group: one actor, and one more in the same bundle for each further TP rank (3.1)."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import ray
from ray.util.placement_group import get_current_placement_group

from asap_ray.actors.chunk_order import ChunkOrder
from asap_ray.actors.device_metrics import RankMetrics
from asap_ray.actors.exporters import RayExporter
from asap_ray.actors.lease import Lease, end_instance
from asap_ray.actors.loop import Loop
from asap_ray.actors.page_owner import Key, PageOwner
from asap_ray.actors.placement import RESOURCE, bundle, settled
from asap_ray.backends.door import Door, FollowedDoor
from asap_ray.batch import Batch, Stamps, Token
from asap_ray.config import ServeConfig, fingerprint_of
from asap_ray.messages import Events, Registrations, decode, encode
from asap_ray.protocol import BatchQueue, Collective
from asap_ray.totals import GroupTotals
from asap_ray.tracks import Timeline

_STOP_S: Final = 5.0


class GroupRank:
    """TP rank j of DP group i. As an actor of its own (j > 0) it follows rank 0's admissions."""

    def __init__(self, config: bytes, group: int, rank: int, port: int, epoch: int) -> None:
        # Here, as a frontend that attaches loads this class, and is to be quick: torch takes two seconds.
        from asap_ray.backends.host import HostAttention  # noqa: PLC0415
        from asap_ray.backends.ports import open_ports  # noqa: PLC0415
        from asap_ray.models.model import load_model  # noqa: PLC0415

        served = decode(ServeConfig, config)
        self.collective = _collective(served, rank, port)
        model = load_model(served.model)
        self._fingerprint = fingerprint_of(served, model.fingerprint)
        self._attention = HostAttention(served, model, group, self.collective, epoch, open_ports(settled(served)))
        self._metrics = RankMetrics(
            RayExporter(app=served.name, dp_group=str(group), tp_rank=str(rank)), self._attention.totals
        )
        self.runtime = self._attention.runtime
        self._loop: Loop | None = None

    def register(self) -> bytes:
        """Where peers find this rank's buffer."""
        return encode(Registrations((self._attention.registration(self._fingerprint),)))

    def follow(self, devices: bytes) -> None:
        """Open the buffers of all MoE devices and start the loop of a rank j > 0."""
        self.serve(devices, FollowedDoor(self.collective, leader=None))

    def serve(self, devices: bytes, door: BatchQueue, on_end: Callable[[], None] = lambda: None) -> None:
        """Open the buffers of all MoE devices and start the loop behind `door`."""
        self._attention.connect(decode(Registrations, devices).devices)
        self._loop = Loop(lambda: self._attention.serve(door), on_end)

    def be_patient(self, seconds: float) -> None:
        """A MoE device is being replaced: wait for it, up to so long."""
        if self._loop:
            self._attention.be_patient(seconds)

    def replace_device(self, device: bytes) -> None:
        """A MoE device died: send its successor what it owes this rank."""
        if self._loop:  # else it will be told with `serve`
            self._attention.replace_device(decode(Registrations, device).devices[0])

    def state(self) -> str:
        """`joining`, `serving`, `stopped`, or what failed; reports metrics."""
        self._metrics.report()
        return self._loop.state if self._loop else "joining"

    def duty(self) -> bytes:
        """Totals of this rank's compute stream."""
        return encode(self._attention.duty)

    def pace(self) -> bytes:
        """What layers took this rank, by their size (`Pace`)."""
        return encode(self._attention.pace.copy())

    def timeline(self, last_s: float) -> bytes:
        """The spans of this rank in the last seconds (`Timeline`)."""
        return encode(self._attention.timeline(last_s))

    def totals(self) -> bytes:
        """What this rank has counted since its start, as the `GroupTotals` of one rank."""
        return encode(GroupTotals(ranks=(self._attention.totals(),)))

    def stop(self) -> None:
        """End the loop."""
        self.runtime.close()
        if self._loop:
            self._loop.join(_STOP_S)


class AttentionGroup:
    """The actor of DP group i: rank 0, the group's door, and the owner of its other ranks."""

    def __init__(self, config: bytes, group: int) -> None:
        from asap_ray.backends.gloo import open_store  # noqa: PLC0415 - see GroupRank

        served = decode(ServeConfig, config)
        self._streams: dict[Key, asyncio.Queue[Events | None]] = {}
        epoch = time.time_ns()
        self._store = store = open_store()
        placement = get_current_placement_group()
        assert placement is not None, "a group runs in a bundle"
        home = bundle(placement, group)
        self._followers: list[Any] = [
            ray.remote(GroupRank)
            .options(num_cpus=0, resources={RESOURCE: 1}, max_concurrency=4, scheduling_strategy=home)
            .remote(config, group, rank, store.port, epoch)
            for rank in range(1, served.parallel.tp)
        ]
        self._rank = GroupRank(config, group, 0, store.port, epoch)
        self._leader = Door(self._rank.runtime, served.prefill, self._deliver)
        self._lease = Lease(served.start_timeout_s + served.orphan_timeout_s, served.orphan_timeout_s, end_instance)
        self._order = ChunkOrder(self._leader.put, self._lease.is_held_by, served.prefill.deadline_s)
        self._pages = PageOwner(self._lease.is_fresh, served.prefill.deadline_s, self._leader.abort)
        self._joining = asyncio.Lock()
        self._end = asyncio.Event()

    async def register(self) -> bytes:
        """Where peers find the buffers of all T ranks, in the order of j."""
        replies = [self._rank.register(), *[await follower.register.remote() for follower in self._followers]]
        return encode(Registrations(tuple(r for reply in replies for r in decode(Registrations, reply).devices)))

    async def serve(self, devices: bytes) -> None:
        """Open the buffers of all MoE devices on every rank and start the loops; once, whoever asks again."""
        async with self._joining:
            if self._rank.state() != "joining":
                return
            door: BatchQueue = self._leader
            if self._followers:
                door = FollowedDoor(self._rank.collective, self._leader)
            self._later = asyncio.get_running_loop().call_soon_threadsafe  # the device's loop is another thread
            await asyncio.gather(*[follower.follow.remote(devices) for follower in self._followers])
            self._rank.serve(devices, door, on_end=self._notice)

    async def be_patient(self, seconds: float) -> None:
        """A MoE device is being replaced: every rank waits for it, up to so long."""
        self._rank.be_patient(seconds)
        await asyncio.gather(*[follower.be_patient.remote(seconds) for follower in self._followers])

    async def replace_device(self, device: bytes) -> None:
        """A MoE device died: every rank sends its successor what it owes."""
        await asyncio.gather(
            asyncio.to_thread(self._rank.replace_device, device),
            *[follower.replace_device.remote(device) for follower in self._followers],
        )

    async def run(self, frontend: str, message: bytes) -> AsyncIterator[bytes]:
        """Prefill a batch, then decode what asks for more: one message a pass, the first one the first tokens.

        A chunk with more to come gets no token; a batch of such chunks alone is one message without any.
        Calls may come in any order: a chunk waits here for the one before it.

        Raises:
            PeerTimeout: a chunk waited for the one before it until the deadline, or for another frontend to leave.
            Unavailable: another frontend has taken over.
            RuntimeError: the loop failed; the text says why.
        """
        self._lease.renew(frontend)
        batch = decode(Batch, message)
        unfinished = {request.request_id for request in batch.requests if not request.future_tokens}
        stream = self._streams[_key(batch)] = asyncio.Queue()
        is_first = True
        try:
            await self._pages.begin(frontend, _key(batch), batch)
            await self._put(frontend, batch)
            while is_first or unfinished:
                if self._rank.state() != "serving" or (events := await stream.get()) is None:
                    raise RuntimeError(f"the loop is not running: {self._rank.state()}")
                unfinished -= {token.request_id for token in events.tokens if token.finish_reason}
                is_first = False
                yield encode(events)
        finally:
            del self._streams[_key(batch)]

    async def abort(self, request_ids: list[str]) -> None:
        """Nobody waits for these any more: what decodes of them ends with its next token."""
        self._leader.abort(request_ids)

    async def state(self, frontend: str) -> str:
        """`joining`, `serving`, `stopped`, or what failed, on the worst of its ranks; renews the frontend's lease."""
        self._lease.renew(frontend)
        followers = [await follower.state.remote() for follower in self._followers]
        states: list[str] = [self._rank.state(), *followers]
        return max(states, key=lambda state: state != "serving")

    async def ended(self) -> str:
        """Wait until the loop of rank 0 ends; what ended it. It does when another rank's has."""
        await self._end.wait()
        return self._rank.state()

    async def duty(self) -> bytes:
        """Totals of rank 0's compute stream."""
        return self._rank.duty()

    async def pace(self) -> bytes:
        """What layers took rank 0, by their size (`Pace`); its collectives make it as slow as the slowest rank."""
        return self._rank.pace()

    async def timeline(self, last_s: float) -> bytes:
        """The spans of its ranks in the last seconds (`Timeline`)."""
        replies = [self._rank.timeline(last_s), *[await each.timeline.remote(last_s) for each in self._followers]]
        return encode(Timeline.of(decode(Timeline, reply) for reply in replies))

    async def totals(self) -> bytes:
        """What its ranks have counted since their start (`GroupTotals`)."""
        replies = [self._rank.totals(), *[await follower.totals.remote() for follower in self._followers]]
        return encode(GroupTotals(ranks=tuple(rank for reply in replies for rank in decode(GroupTotals, reply).ranks)))

    async def stop(self, frontend: str) -> bool:
        """End the loops, unless another frontend uses them; whether they ended. Running batches fail."""
        if not self._lease.release(frontend):
            return False
        await self.end()
        return True

    async def end(self) -> None:
        """End the loops, whoever uses them: a device is lost, and what runs must not wait for it."""
        await asyncio.gather(
            asyncio.to_thread(self._rank.stop), *[follower.stop.remote() for follower in self._followers]
        )

    async def _put(self, frontend: str, batch: Batch) -> None:
        try:
            await self._order.put(frontend, batch)
        except BaseException:
            self._pages.drop(_key(batch))
            raise

    def _deliver(self, batch: Batch, tokens: tuple[Token, ...], stamps: Stamps) -> None:
        events = Events(tokens, dataclasses.replace(stamps))  # the loop goes on counting in its own
        self._later(self._hand_over, _key(batch), events)

    def _hand_over(self, key: Key, events: Events) -> None:
        self._pages.passed(key, events.tokens)
        if key in self._streams:  # gone if its scheduler is
            self._streams[key].put_nowait(events)

    def _notice(self) -> None:
        self._later(self._fail_streams)

    def _fail_streams(self) -> None:
        self._end.set()
        for stream in self._streams.values():
            stream.put_nowait(None)


def _key(batch: Batch) -> Key:
    """One a batch in flight: two of them may hold chunks of one prompt, or the same one in two lives of its cache."""
    first = batch.requests[0]
    return first.request_id, first.past_tokens, batch.cache_life


def _collective(served: ServeConfig, rank: int, port: int) -> Collective:
    from asap_ray.backends.gloo import GlooCollective, SoloCollective, find_store  # noqa: PLC0415 - see GroupRank

    if served.parallel.tp == 1:
        return SoloCollective()
    store = find_store(port)
    return GlooCollective(store, rank, served.parallel.tp, served.prefill.deadline_s, served.start_timeout_s)
