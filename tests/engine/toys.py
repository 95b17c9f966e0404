"""A model small enough to check by hand, and whole instances of it in one process.

A token's value passes through L layers: layer l adds to it the weighted sum of its experts' outputs,
and expert x of layer l multiplies by `SCALES[l, x]`. Routing is random but a function of (token, layer),
so the undivided model is four lines.
"""

# Shapes: S tokens, H hidden, K experts a token, R rows on a MoE device, E its experts.

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
import torch.distributed as dist

from asap_ray import _native
from asap_ray.backends.door import Door, FollowedDoor
from asap_ray.backends.gloo import GlooCollective, SoloCollective
from asap_ray.backends.host_comm import HostAttentionComm, HostMoEComm
from asap_ray.backends.threads import ThreadRuntime, drive
from asap_ray.batch import Batch, Request, Stamps, Token
from asap_ray.engine import attention, experts, instance
from asap_ray.errors import Closed
from asap_ray.laps import Laps, State
from asap_ray.layout import layout_of
from asap_ray.protocol import NOBODY, Collective, Finished, Routed
from asap_ray.spec import Instance, RowType
from asap_ray.telemetry.received import Received
from asap_ray.telemetry.recording import Recordings
from asap_ray.tracks import Role, Source
from tests.csrc.kinds import HostKind, Kind

HIDDEN = 16

Passes = Mapping[str, int]
NO_PASSES: Passes = {}
Loops = tuple[instance.AttentionLoop, instance.ExpertsLoop]
DEFAULT_LOOPS: Loops = (attention.serve, experts.serve)


def no_delay() -> float:
    """Stages take no time of their own."""
    return 0.0


class Toy:
    """The mathematics, undivided."""

    def __init__(self, whole: Instance) -> None:
        model = whole.model
        generator = torch.Generator().manual_seed(7)
        self.whole = whole
        self.scales = torch.rand(model.num_layers, model.num_experts, generator=generator)
        self.choices = torch.rand(model.num_layers, 997, model.num_experts, generator=generator)

    def embed(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """[S, H]"""
        return (tokens_S[:, None] % 89 + torch.arange(HIDDEN)[None]).float() / 89

    def route(self, layer: int, tokens_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids and weights, [S, K] each."""
        weights_SK, ids_SK = self.choices[layer, tokens_S % 997].topk(self.whole.model.top_k)
        return ids_SK.int(), weights_SK / weights_SK.sum(-1, keepdim=True)

    def undivided(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """The answer, [S, H]."""
        x_SH = self.embed(tokens_S)
        for layer in range(self.whole.model.num_layers):
            ids_SK, weights_SK = self.route(layer, tokens_S)
            x_SH = x_SH + (weights_SK * self.scales[layer][ids_SK.long()]).sum(-1, keepdim=True) * x_SH
        return x_SH


@dataclasses.dataclass
class Pass:
    """A batch under way on one rank."""

    batch: Batch
    tokens_S: torch.Tensor
    x_SH: torch.Tensor
    num_passes: int  # to come, this one included: decode steps in all but name


class ToyAttention:
    """Rank j's part: its share of the tokens."""

    def __init__(self, toy: Toy, collective: Collective, delay_s: Callable[[], float], passes: Passes) -> None:
        self.num_layers = toy.whole.model.num_layers
        self._toy = toy
        self._collective = collective
        self._delay_s = delay_s
        self._passes = passes

    async def start(self, batch: Batch) -> Pass:
        tokens_S = torch.cat([torch.frombuffer(bytearray(r.token_ids), dtype=torch.int32) for r in batch.requests])
        share = -(-len(tokens_S) // self._collective.size)
        mine_S = tokens_S[self._collective.rank * share :][:share]
        num_passes = self._passes.get(batch.requests[0].request_id, 1)
        return Pass(batch, mine_S.long(), self._toy.embed(mine_S), num_passes)

    async def attend(self, state: Pass, layer: int, expert_out: torch.Tensor | None) -> Routed:
        time.sleep(self._delay_s())
        if expert_out is not None:
            state.x_SH = state.x_SH + expert_out
        self._collective.all_gather(torch.zeros(1))  # like attention's, it needs all ranks' results of the layer before
        return Routed(state.x_SH.contiguous(), *self._toy.route(layer, state.tokens_S))

    async def finish(self, state: Pass, expert_out: torch.Tensor, unwanted: Set[str] = NOBODY) -> Finished:
        is_wanted = state.batch.requests[0].request_id not in unwanted
        if state.num_passes > 1 and self._collective.broadcast(b"on" if is_wanted else b"") == b"on":
            again = dataclasses.replace(state, x_SH=self._toy.embed(state.tokens_S), num_passes=state.num_passes - 1)
            return Finished((), again)
        share_SH = state.x_SH + expert_out
        size, requests = self._collective.size, state.batch.requests
        padded_SH = torch.zeros(-(-state.batch.num_tokens // size), HIDDEN)
        padded_SH[: len(share_SH)] = share_SH
        whole_SH = self._collective.all_gather(padded_SH)
        tokens, begin = [], 0
        for request in requests:
            end = begin + request.num_tokens
            total = float(whole_SH[begin:end].sum())
            tokens.append(Token(request_id=request.request_id, token_id=0, logprob=total, finish_reason="length"))
            begin = end
        return Finished(tuple(tokens), None)


class ToyExperts:
    """Device e's part: its experts' scales."""

    def __init__(self, toy: Toy, moe_device: int, delay_s: Callable[[], float]) -> None:
        mine = toy.whole.experts_of(moe_device)
        self.moe_device = moe_device
        self._scales = toy.scales[:, list(mine)]
        self.delay_s = delay_s

    async def super_kernel(self, layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        time.sleep(self.delay_s())
        return rows_RH * self._scales[layer].repeat_interleave(num_rows_E.long())[:, None]


class ToyInstance:
    """Every loop of an instance as threads of this process, behind D doors."""

    def __init__(
        self,
        toy: Toy,
        delay_s: Callable[[], float] = no_delay,
        loops: Loops = DEFAULT_LOOPS,
        passes: Passes = NO_PASSES,
        kind: Kind | None = None,
    ) -> None:
        self._kind: Kind = kind or HostKind()
        self.answers: dict[str, float] = {}
        self.finished: list[str] = []
        self.failure: BaseException | None = None
        self._answered = threading.Condition()
        self._runtime = ThreadRuntime()
        self._loops = loops
        self.doors: list[Door] = []
        self._ports: list[_native.AttentionComm] = []
        self._dead_buffers: list[Any] = []  # what was killed closes nothing: its peers' mappings stay
        self.received: list[Received] = []
        self.recordings = Recordings()
        ranks, self.devices = self._build(toy, delay_s, passes)
        self._thread = threading.Thread(target=self._serve, args=(ranks, self.devices))
        self._thread.start()

    def ask(self, batches: list[tuple[int, Batch]], timeout_s: float = 60.0) -> dict[str, float]:
        """Give each (group, batch) to its door and wait for all answers."""
        for group, batch in batches:
            self.doors[group].put(batch)
        return self.wait(batches, timeout_s)

    def wait(self, batches: list[tuple[int, Batch]], timeout_s: float = 60.0) -> dict[str, float]:
        """Wait for all answers to batches that are at their doors."""
        wanted = {request.request_id for _, batch in batches for request in batch.requests}
        with self._answered:
            self._answered.wait_for(lambda: self.failure or wanted <= set(self.answers), timeout_s)
        if self.failure:
            raise self.failure
        return {name: self.answers[name] for name in wanted}

    def close(self) -> None:
        """End every loop."""
        self._runtime.close()
        self._thread.join()

    def __enter__(self) -> ToyInstance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(
        self, toy: Toy, delay_s: Callable[[], float], passes: Passes
    ) -> tuple[list[attention.Rank], list[experts.Device]]:
        whole, layout = toy.whole, layout_of(toy.whole)
        degrees, limits = whole.parallel, whole.prefill
        native_layout = _native.Layout(**dataclasses.asdict(layout))
        create = self._kind.create
        self._moe_buffers = [create(f"moe-{e}", layout.moe_bytes) for e in range(degrees.moe_devices)]
        self._rank_buffers = [
            [create(f"attention-{i}-{j}", layout.attention_bytes) for j in range(degrees.tp)]
            for i in range(degrees.dp_groups)
        ]
        ranks = []
        for i in range(degrees.dp_groups):
            self.doors.append(Door(self._runtime, limits, self._deliver))
            for j, collective in enumerate(collectives(degrees.tp)):
                port = self._kind.rank(
                    whole,
                    RowType.FLOAT32,
                    layout=native_layout,
                    buffer=self._rank_buffers[i][j],
                    moe_buffers=self._moe_buffers,
                    dp_group=i,
                    tp_rank=j,
                    epoch=1,
                )
                self._ports.append(port)
                self._runtime.on_close(port.abort)
                comm = HostAttentionComm(port, layout, torch.float32, limits.deadline_s)
                door: Any = self.doors[i]
                if degrees.tp > 1:
                    door = FollowedDoor(collective, self.doors[i] if j == 0 else None)
                stage = ToyAttention(toy, collective, delay_s, passes)
                recorder = self.recordings.device(Source(role=Role.ATTENTION, index=i, tp_rank=j))
                laps = Laps[attention.Flight](self._runtime.now, State.IDLE, recorder("attention"))
                ranks.append(attention.Rank(self._runtime, comm, stage, door, laps))
        devices = [self._device(toy, e, delay_s) for e in range(degrees.moe_devices)]
        return ranks, devices

    def _device(self, toy: Toy, e: int, delay_s: Callable[[], float]) -> experts.Device:
        """With a runtime of its own, as a process has."""
        runtime = ThreadRuntime()
        self._runtime.on_close(runtime.close)
        port = self._kind.device(
            toy.whole,
            RowType.FLOAT32,
            layout=_native.Layout(**dataclasses.asdict(layout_of(toy.whole))),
            buffer=self._moe_buffers[e],
            attention_buffers=self._rank_buffers,
            moe_device=e,
            epochs=[1] * len(self._rank_buffers),
        )
        runtime.on_close(port.abort)
        received = Received(len(toy.whole.experts_of(e)), toy.whole.model.num_layers)
        self.received.append(received)
        comm = HostMoEComm(port, received, torch.float32, toy.whole.prefill.deadline_s)
        streams = experts.Streams.of(runtime, self.recordings.device(Source(role=Role.MOE, index=e)))
        return experts.Device(runtime, comm, ToyExperts(toy, e, delay_s), streams)

    def replace_device(self, toy: Toy, e: int) -> experts.Device:
        """Device e is dead: its successor, with a buffer of its own, of which every rank has heard."""
        self._dead_buffers.append(self._moe_buffers[e])
        self._moe_buffers[e] = self._kind.create(f"moe-{e}", layout_of(toy.whole).moe_bytes)
        device = self._device(toy, e, no_delay)
        for port in self._ports:
            port.replace_device(e, self._kind.peer(self._moe_buffers[e]))
        return device

    def _serve(self, ranks: list[attention.Rank], devices: list[experts.Device]) -> None:
        try:
            drive(instance.serve(self._runtime, ranks, devices, self._loops))
        except Closed:
            return
        except BaseException as error:
            with self._answered:
                self.failure = error
                self._answered.notify_all()

    def _deliver(self, _batch: Batch, tokens: tuple[Token, ...], _stamps: Stamps) -> None:
        with self._answered:
            self.answers |= {token.request_id: token.logprob or 0.0 for token in tokens}
            self.finished += [token.request_id for token in tokens]
            self._answered.notify_all()


def collectives(size: int) -> list[Collective]:
    """The collectives of one group's ranks, in this process."""
    if size == 1:
        return [SoloCollective()]
    store, made = dist.HashStore(), {}

    def join(rank: int) -> None:
        made[rank] = GlooCollective(store, rank, size, deadline_s=30.0, join_timeout_s=30.0)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[rank] for rank in range(size)]


def random_batch(name: str, lengths: list[int], seed: int) -> Batch:
    """A batch of prompts with random token ids."""
    generator = random.Random(seed)
    requests = []
    for index, length in enumerate(lengths):
        tokens = torch.tensor([generator.randrange(10_000) for _ in range(length)], dtype=torch.int32)
        requests.append(
            Request(request_id=f"{name}.{index}", num_tokens=length, arrival_s=0.0, token_ids=tokens.numpy().tobytes())
        )
    return Batch(tuple(requests))


def expected(toy: Toy, batch: Batch) -> dict[str, float]:
    """The undivided model's answers to a batch."""
    answers = {}
    for request in batch.requests:
        tokens_S = torch.frombuffer(bytearray(request.token_ids), dtype=torch.int32).long()
        answers[request.request_id] = float(toy.undivided(tokens_S).sum())
    return answers
