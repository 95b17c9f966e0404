"""A prefill instance as its frontend sees it: detached actors, found by name or started, replaced when lost (3.1)."""

from __future__ import annotations

import array
import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ray.exceptions import RayError

from asap_ray.actors.instance_actors import InstanceActors, NoAnswer, clear_instance, reason_of
from asap_ray.actors.placement import running_names
from asap_ray.actors.recovery import ANSWER_S, Recovery, Registered
from asap_ray.actors.served_model import ServedModel
from asap_ray.actors.vitals import SERVING, Vitals
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.config import ServeConfig, fingerprint_of
from asap_ray.errors import AsapError, ConfigError, DeviceLost, Unavailable
from asap_ray.messages import Events, Pages, Registration, Registrations, decode, differing_fields, encode
from asap_ray.totals import Pace
from asap_ray.tracks import Timeline

_STOP_S: Final = 10.0
_WARM_TOKENS: Final = 16
"""Of the warm-up prompt, for every pair of a rank and a MoE device."""


@dataclass(frozen=True, slots=True)
class Change:
    """A DP group is lost, or back."""

    group: int
    lost: str  # why; empty: it is back


class PrefillInstance:
    """The D groups and E devices of one instance, as one frontend sees them.

    They are detached: a frontend that dies leaves them serving, and the next one attaches to them
    without loading weights again. The last one that leaves ends them, or their lease does. One that is
    lost is started again by Ray and joined to the others by `watch` (ADR 0007).
    """

    def __init__(self, config: ServeConfig, model: ServedModel) -> None:
        """Nothing is started yet; `model` is the one that every device must have loaded."""
        self._config = config
        self._model = model
        self._actors = InstanceActors(config)
        self._missing: tuple[str, ...] = tuple(self._actors.names)
        self.vitals = Vitals.of(self._actors.names)
        self._id = uuid.uuid4().hex  # of this frontend, for the devices' leases
        self.registered: dict[str, tuple[Registration, ...]] = {}
        self._recovery = Recovery(self, config.start_timeout_s)
        self._start_by_s = 0.0

    @property
    def num_groups(self) -> int:
        """D."""
        return self._config.parallel.dp_groups

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache of each group: the least of all ranks', once they serve."""
        return min(rank.num_blocks for name in self._actors.groups for rank in self.registered[name])

    def shared_pages(self, group: int) -> tuple[Pages, ...]:
        """Where the KV cache of a group's ranks lies, once they serve."""
        return tuple(rank.pages for rank in self.registered[self._actors.groups[group]] if rank.pages)

    def missing(self) -> tuple[str, ...]:
        """Devices that are not serving; empty when ready."""
        return self._missing or tuple(f"{name} ({reason})" for name, reason in self._recovery.absent.items())

    @property
    def is_recovering(self) -> bool:
        """Whether what is missing is being brought back, so that prompts may wait for it."""
        return not self._missing and bool(self._recovery.absent)

    def report(self, group: int, reason: str) -> None:
        """A DP group does not get on: it is to be replaced, whatever it says of itself."""
        self._recovery.report(self._actors.groups[group], reason)

    async def serves(self, group: int) -> bool:
        """Whether a DP group says that it serves."""
        return await self.state(self._actors.groups[group]) == SERVING

    async def start(self) -> None:
        """Attach to running actors, or start them all, join them and warm every pair.

        Raises:
            ConfigError: too few devices, or devices that disagree; names the differing field.
            Unavailable: somebody did not come up in time; names who, and why if it said so. All are stopped.
        """
        now = asyncio.get_running_loop().time
        began_s = now()
        self._start_by_s = began_s + self._config.start_timeout_s
        try:
            if not (has_attached := await self._attach()):
                await clear_instance(self._config.name)
                await self._actors.create(self._left_s())
                # A replica that drained may have had the places for long.
                self._start_by_s = now() + self._config.start_timeout_s
                registered = await self._registrations(self._actors.names, self._left_s())
                self._require_deployed(registered)
                await self.join(self._actors.names, registered)
                await self._warm()
        except Exception as error:
            self._missing = (f"start failed: {error}",)
            await self._actors.clear()
            raise
        self._missing = ()
        self.vitals.started("attached" if has_attached else "created", now() - began_s)

    async def watch(self) -> AsyncIterator[Change]:
        """Look after the devices and bring back those that are lost; says of DP groups when they go and are back.

        Raises:
            DeviceLost: one did not come back in time, or is lost too often; names who is missing and why. The groups
                are stopped, so that no request waits.
        """
        groups = self._actors.groups
        try:
            async for name, reason in self._recovery.watch(self._actors.names):
                (self.vitals.lost if reason else self.vitals.back)(name)
                if name in groups:
                    yield Change(groups.index(name), reason)
        except AsapError as error:
            self._missing = self.missing()
            await self._actors.ask(groups, "end", timeout_s=_STOP_S)
            raise DeviceLost(f"{'; '.join(self._missing)}: {error}") from None

    async def run(self, group: int, batch: Batch) -> AsyncIterator[tuple[tuple[Token, ...], Stamps]]:
        """Stream a batch's tokens from a DP group.

        Raises:
            DeviceLost: the group failed or is gone; the text says why.
        """
        name = self._actors.groups[group]
        try:
            stream = self._actors.stream(name, "run", self._id, encode(batch))
            async for reference in stream:
                events = decode(Events, await reference)
                yield events.tokens, events.stamps
        except RayError as error:
            raise DeviceLost(f"{name}: {reason_of(error)}") from None

    def abort(self, group: int, request_ids: Sequence[str]) -> None:
        """See `Groups`; a group that cannot be told is lost with what it runs."""
        self._actors.tell(self._actors.groups[group], "abort", list(request_ids))

    async def timeline(self, last_s: float) -> Timeline:
        """The spans of every device's streams in the last seconds; a device that does not answer is left out."""
        replies = await self._actors.ask(self._actors.names, "timeline", last_s, timeout_s=ANSWER_S)
        return Timeline.of(decode(Timeline, reply) for reply in replies.values() if isinstance(reply, bytes))

    async def paces(self) -> dict[str, Pace]:
        """What layers took every device, by name; a device that does not answer is left out."""
        replies = await self._actors.ask(self._actors.names, "pace", timeout_s=ANSWER_S)
        return {name: decode(Pace, reply) for name, reply in replies.items() if isinstance(reply, bytes)}

    async def stop(self) -> None:
        """End every device that no other frontend uses; running batches are not waited for."""
        self._missing = ("the instance is stopping",)
        stopped = await self._actors.ask(self._actors.names, "stop", self._id, timeout_s=_STOP_S)
        if False not in stopped.values():
            await self._actors.clear()

    def _left_s(self) -> float:
        """Of the time to start."""
        return max(0.0, self._start_by_s - asyncio.get_running_loop().time())

    async def state(self, name: str) -> str:
        """`serving`, or anything else; renews its lease. Asks twice: perhaps it was this process that stood still."""
        for patience_s in (ANSWER_S / 2, ANSWER_S / 2):
            state = await self._actors.call(name, "state", (self._id,), patience_s)
            if not isinstance(state, NoAnswer):
                break
        return str(state)

    async def call(self, name: str, method: str, timeout_s: float | None) -> Any:
        """What a method without arguments answers, or a `Refusal`."""
        return await self._actors.call(name, method, (), timeout_s)

    async def _lost(self) -> tuple[str, ...]:
        """Every device that is not serving, and what became of it."""
        states = await self._actors.ask(self._actors.names, "state", self._id, timeout_s=ANSWER_S)
        self.vitals.saw(states)
        return tuple(f"{name} ({state})" for name, state in states.items() if state != SERVING)

    async def _attach(self) -> bool:
        """Whether every device is there, serves, and was built from this very configuration and checkpoint."""
        if sorted(self._actors.names) != sorted(running_names(self._config.name)):
            return False
        try:
            self._actors.find()
            if await self._lost():
                return False
            self.registered |= await self._registrations(self._actors.names, ANSWER_S)
        except (ValueError, Unavailable):  # somebody went meanwhile
            return False
        return all(rank.fingerprint == self._fingerprint for ranks in self.registered.values() for rank in ranks)

    @property
    def _fingerprint(self) -> dict[str, str]:
        return fingerprint_of(self._config, self._model.fingerprint)

    def _require_deployed(self, registered: Registered) -> None:
        """Raise ConfigError unless every device loaded what this frontend was deployed with."""
        for name, ranks in registered.items():
            for field, ours, theirs in differing_fields(self._fingerprint, ranks[0].fingerprint):
                raise ConfigError(
                    f"{name} has loaded another {field} than was deployed: {theirs}, not {ours}; "
                    "delete the application and deploy it again"
                )

    async def be_patient(self, seconds: float) -> None:
        """Devices are being replaced: groups that wait for one go on waiting, up to so long."""
        await self._actors.ask(self._actors.groups, "be_patient", seconds, timeout_s=ANSWER_S)

    async def join(self, names: Collection[str], registered: Registered) -> None:
        """Join these devices to each other and to those that serve, of which some `registered` just now.

        No group sends before every device knows its epoch (docs/verify.md, rule 7). Repeated, it changes nothing.
        """
        self.registered |= registered
        agree({f"{name} rank {rank.tp_rank}": rank for name, ranks in self.registered.items() for rank in ranks})
        groups, devices, timeout_s = self._actors.groups, self._actors.devices, self._config.start_timeout_s
        ranks, peers = self._message(groups), self._message(devices)
        await self._actors.demand([name for name in devices if name in names], "serve", timeout_s, ranks)
        for name in filter(names.__contains__, groups):
            await self._actors.demand(devices, "replace_group", ANSWER_S, self._message([name]))
        for name in filter(names.__contains__, devices):
            await self._actors.demand(groups, "replace_device", ANSWER_S, self._message([name]))
        await self._actors.demand([name for name in groups if name in names], "serve", timeout_s, peers)

    def _message(self, names: Iterable[str]) -> bytes:
        """Where the buffers of these devices are."""
        return encode(Registrations(tuple(rank for name in names for rank in self.registered[name])))

    async def _registrations(self, names: list[str], timeout_s: float) -> dict[str, tuple[Registration, ...]]:
        replies = await self._actors.demand(names, "register", timeout_s)
        return {name: decode(Registrations, reply).devices for name, reply in replies.items()}

    async def _warm(self) -> None:
        """One batch through every group; every layer of it sends to every MoE device, as good as surely rows."""
        parallel = self._config.parallel
        num_tokens = min(self._config.prefill.solo_tokens, _WARM_TOKENS * parallel.tp * parallel.moe_devices)
        token_ids = array.array("i", (n % self._model.vocab_size for n in range(num_tokens))).tobytes()

        async def warm(group: int) -> None:
            prompt = Request(request_id=f"warm-{group}", num_tokens=num_tokens, arrival_s=0.0, token_ids=token_ids)
            async for _ in self.run(group, Batch((prompt,))):
                pass

        try:
            async with asyncio.timeout(self._left_s()):
                await asyncio.gather(*map(warm, range(self.num_groups)))
        except (TimeoutError, DeviceLost) as error:
            lost = await self._lost()  # who failed first is seldom who noticed
            raise Unavailable(f"warm-up: {'; '.join(lost) or error or 'no answer in time'}") from None


def agree(registered: Mapping[str, Registration]) -> None:
    """The join handshake: every device must have loaded the same model and configuration, and reach the others.

    Raises:
        ConfigError: names two that differ, the field, and both values.
    """
    (first, reference), *others = registered.items()
    for name, registration in others:
        for field, ours, theirs in differing_fields(reference.fingerprint, registration.fingerprint):
            raise ConfigError(f"{first} and {name} differ in {field}: {ours} and {theirs}")
        if reference.node != registration.node and not (reference.link and registration.link):
            raise ConfigError(
                f"{first} and {name} differ in node: {reference.node} and {registration.node}; between nodes rows "
                "travel with fabric auto or nixl and the extra asap-ray[nixl]"
            )
