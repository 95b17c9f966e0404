"""Devices on CPUs: real mathematics over shared memory, one process or thread a device."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch

from asap_ray import _native
from asap_ray.backends.host_comm import DTYPES
from asap_ray.backends.host_ports import HostPorts
from asap_ray.backends.kv_memory import fit_blocks
from asap_ray.backends.node import node_name
from asap_ray.backends.peers import Peers
from asap_ray.backends.ports import Ports
from asap_ray.backends.threads import ThreadRuntime
from asap_ray.batch import Duty
from asap_ray.config import ServeConfig
from asap_ray.engine import attention, experts
from asap_ray.laps import Laps, State
from asap_ray.layout import layout_of
from asap_ray.messages import Pages, Registration
from asap_ray.models.model import Model
from asap_ray.protocol import BatchQueue, Collective
from asap_ray.spec import NUM_SLOTS, Instance
from asap_ray.telemetry.received import Received
from asap_ray.telemetry.recording import Recording
from asap_ray.totals import DeviceTotals, Pace, RankTotals, stream_totals
from asap_ray.tracks import Role, Source, Timeline


def instance_of(config: ServeConfig, model: Model) -> Instance:
    """The instance a configuration makes of a model."""
    return Instance(model=model.spec, parallel=config.parallel, prefill=config.prefill, placement=config.placement)


def _register(ports: Ports, buffer: Any, fingerprint: dict[str, str], **who: Any) -> Registration:
    return Registration(node=node_name(), fingerprint=fingerprint, **ports.address(buffer), **who)


class HostAttention:
    """Rank j of DP group i: its buffer, its share of the model, its loop."""

    def __init__(
        self,
        config: ServeConfig,
        model: Model,
        group: int,
        collective: Collective,
        epoch: int,
        ports: Ports | None = None,
    ) -> None:
        self._config = config
        self._ports: Ports = ports or HostPorts()
        self._instance = instance_of(config, model)
        self._layout = layout_of(self._instance)
        self._group = group
        self._rank = collective.rank
        self._epoch = epoch  # one a group, from rank 0
        place = self._ports.place
        dtype = DTYPES[config.compute_type]
        self.stage = model.attention_stage(place.collective(collective), dtype, place.kernels)
        self._num_blocks, self._pages = self._make_pages()
        self._buffer = self._ports.create(f"attention-{group}-{collective.rank}", self._layout.attention_bytes)
        self.runtime = ThreadRuntime()
        self.duty = Duty.zero()
        self.pace = Pace()
        self._recording = Recording(Source(role=Role.ATTENTION, index=group, tp_rank=collective.rank))
        self._laps = Laps[attention.Flight](self.runtime.now, State.IDLE, self._recording.stream("attention"))
        self._native: _native.AttentionComm | None = None  # until it is connected

    def _make_pages(self) -> tuple[int, Pages | None]:
        """The KV cache of this rank: blocks, and where others find them. It does not outlive the stage, its writer."""
        config, layout, place = self._config, self._layout, self._ports.place
        spec = self.stage.cache_spec(config.kv_cache.block_size)
        results_bytes = NUM_SLOTS * NUM_SLOTS * layout.slot_rows * layout.hidden * config.compute_type.num_bytes
        taken = {
            "process with weights": place.used_bytes(),
            "buffers": layout.attention_bytes + results_bytes,
            "workspace": self.stage.workspace_bytes(config.prefill.max_tokens, config.threads),
        }
        if mirror_bytes := self._ports.mirror_bytes(layout):
            taken["mirrors of buffers on other hosts"] = mirror_bytes
        num_blocks = fit_blocks(config, spec, place.total_bytes(config), taken)
        storage, memory = place.pages(f"pages-{self._group}-{self._rank}", spec, num_blocks)
        self.stage.keep_in(storage)
        self._page_memory = memory
        if memory is None:
            return num_blocks, None
        where = {"pid": memory.pid, "fd": memory.fd, "num_bytes": memory.num_bytes}
        return num_blocks, Pages(**where, num_blocks=num_blocks, spec=spec)

    def registration(self, fingerprint: dict[str, str]) -> Registration:
        """Where peers find this rank's buffer, and a decode instance its pages if they are shared."""
        return _register(
            self._ports,
            self._buffer,
            fingerprint,
            role="attention",
            index=self._group,
            tp_rank=self._rank,
            epoch=self._epoch,
            num_blocks=self._num_blocks,
            pages=self._pages,
        )

    def connect(self, devices: Sequence[Registration]) -> None:
        """Open the buffers of all MoE devices, given in the order of e."""
        prefill = self._config.prefill
        self._peers = Peers(devices)
        self._ports.on_failure(self.runtime.fail)
        native = self._ports.attention(
            layout=_native.Layout(**dataclasses.asdict(self._layout)),
            buffer=self._buffer,
            moe_buffers=[self._ports.open(device) for device in devices],
            expert_of_place=self._instance.placed.expert_of_place,
            dp_group=self._group,
            tp_rank=self._rank,
            epoch=self._epoch,
            row_type=prefill.row_type,
            combine=prefill.combine,
        )
        self.runtime.on_close(native.abort)
        self.runtime.on_close(self._ports.close)
        self._native = native
        dtype = DTYPES[self._config.compute_type]
        self.comm = self._ports.attention_comm(native, self._layout, dtype, prefill.deadline_s)

    def be_patient(self, seconds: float) -> None:
        """A MoE device is being replaced: until it is, for so long at most, no deadline passes. For any thread."""
        assert self._native, "a rank is joined before a device can be lost"
        self._native.be_patient(seconds)

    def replace_device(self, device: Registration) -> None:
        """A MoE device died and this is its successor: send again what it owes. For any thread; a repetition is one."""
        assert self._native, "a rank is joined before a device can be lost"
        with self._peers.replacing(device.index, device) as is_new:
            if is_new:
                self._native.replace_device(device.index, self._ports.open(device))

    def serve(self, queue: BatchQueue) -> None:
        """Run the loop in this thread until `runtime.close()`; raises what ended it otherwise."""
        torch.set_num_threads(self._config.threads)
        rank = attention.Rank(self.runtime, self.comm, self.stage, queue, self._laps, self.duty, self.pace)
        self._laps.restart()
        self.runtime.serve_out(attention.serve(rank))

    def timeline(self, last_s: float) -> Timeline:
        """The spans of the last seconds, as far as they are kept; for any thread."""
        return Timeline(tracks=self._recording.tracks(self.runtime.now() - last_s))

    def totals(self) -> RankTotals:
        """What this rank has counted since its start; for any thread."""
        seconds = self._laps.totals_s()
        return RankTotals(
            duty=self.duty,
            dispatch_s=seconds[State.DISPATCH],
            combine_s=seconds[State.COMBINE],
            idle_s=seconds[State.IDLE],
            backpressure_s_M=tuple(self._native.backpressure_s) if self._native else (),
        )


class HostMoE:
    """MoE device e: its buffer, its experts of all layers, its streams."""

    def __init__(self, config: ServeConfig, model: Model, moe_device: int, ports: Ports | None = None) -> None:
        self._config = config
        self._ports: Ports = ports or HostPorts()
        self._instance = instance_of(config, model)
        self._layout = layout_of(self._instance)
        self._moe_device = moe_device
        self._epoch = time.time_ns()
        self.stage = self._ports.experts(config, model, self._instance, moe_device)
        self._buffer = self._ports.create(f"moe-{moe_device}", self._layout.moe_bytes)
        self.runtime = ThreadRuntime()
        self.duty = Duty.zero()
        self._recording = Recording(Source(role=Role.MOE, index=moe_device))
        self._laps = experts.Streams.of(self.runtime, self._recording.stream)
        self._received = Received(len(self._instance.experts_of(moe_device)), self._instance.model.num_layers)

    def registration(self, fingerprint: dict[str, str]) -> Registration:
        """Where peers find this device's buffer."""
        who = {"role": "moe", "index": self._moe_device, "tp_rank": 0, "epoch": self._epoch}
        return _register(self._ports, self._buffer, fingerprint, **who)

    def connect(self, ranks: Sequence[Registration]) -> None:
        """Open the buffers of all attention ranks, given in the order of (i, j)."""
        prefill, tp = self._config.prefill, self._config.parallel.tp
        self._peers = Peers(ranks[::tp])
        self._ports.on_failure(self.runtime.fail)
        native = self._native = self._ports.moe(
            layout=_native.Layout(**dataclasses.asdict(self._layout)),
            buffer=self._buffer,
            attention_buffers=[
                [self._ports.open(rank) for rank in ranks[i : i + tp]] for i in range(0, len(ranks), tp)
            ],
            moe_device=self._moe_device,
            epochs=[rank.epoch for rank in ranks[::tp]],
            row_type=prefill.row_type,
            combine=prefill.combine,
            compute_type=self._config.compute_type,
        )
        self.runtime.on_close(native.abort)
        self.runtime.on_close(self._ports.close)
        self.comm = self._ports.moe_comm(native, self._received, DTYPES[self._config.compute_type], prefill.deadline_s)

    def replace_group(self, ranks: Sequence[Registration]) -> None:
        """A group died and these are its successor's ranks, in the order of j. For any thread; a repetition is one."""
        leader = ranks[0]
        with self._peers.replacing(leader.index, leader) as is_new:
            if is_new:
                self._native.replace_group(leader.index, [self._ports.open(rank) for rank in ranks], leader.epoch)

    def serve(self) -> None:
        """Run the streams until `runtime.close()`; raises what ended them otherwise."""
        torch.set_num_threads(self._config.threads)
        self._laps.restart()
        device = experts.Device(self.runtime, self.comm, self.stage, self._laps, self.duty)
        self.runtime.serve_out(experts.serve(device))

    def timeline(self, last_s: float) -> Timeline:
        """The spans of the last seconds, as far as they are kept; for any thread."""
        return Timeline(tracks=self._recording.tracks(self.runtime.now() - last_s))

    def totals(self) -> DeviceTotals:
        """What this device has counted since its start; for any thread."""
        received, laps = self._received, self._laps
        return DeviceTotals(
            duty=self.duty,
            receive=stream_totals(laps.receive, State.RECEIVE),
            compute=stream_totals(laps.compute, State.EXPERTS),
            send=stream_totals(laps.send, State.SEND),
            num_tokens=received.num_tokens,
            num_dropped=received.num_dropped,
            num_expert_calls=received.num_expert_calls,
            rows_E=tuple(received.rows_E.tolist()),
            steps_L=tuple(received.steps_L.tolist()),
        )
