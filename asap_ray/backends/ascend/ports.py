"""The ports of one Ascend die: shared device memory, the primitives and the super kernel (csrc/ascend/host)."""

# Shapes: R rows on a MoE device, E its experts, H hidden.

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from asap_ray import _native
from asap_ray.backends.ascend.die_place import DiePlace
from asap_ray.backends.ascend.grouped_experts import GroupedExperts
from asap_ray.backends.ascend.ops import DieEndpoint
from asap_ray.backends.ascend.tensor_comm import DEVICE, TensorComm
from asap_ray.backends.ascend.toolkit import open_die, require
from asap_ray.backends.host_comm import DTYPES, HostAttentionComm, HostMoEComm
from asap_ray.backends.place import HostPlace, Place
from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError, DeviceLost
from asap_ray.layout import Layout, layout_of
from asap_ray.messages import Registration
from asap_ray.models.fused import array_of
from asap_ray.models.model import Model
from asap_ray.protocol import AttentionComm, MoEStage
from asap_ray.spec import ExpertType, Instance

_NO_FILE: Final = -1


def require_device(config: ServeConfig) -> None:
    """Nothing, if an actor may find what it needs on this machine.

    Raises:
        ConfigError: the text says what is missing.
    """
    require(config.kernels)
    _on_die(config)


def _on_die(config: ServeConfig) -> bool:
    """Whether attention computes on the die.

    Raises:
        ConfigError: the configuration asks for what goes only with torch-npu, or only without.
    """
    if not importlib.util.find_spec("torch_npu"):
        if config.expert_kernel == "grouped_matmul":
            raise ConfigError("expert_kernel='grouped_matmul' needs torch-npu: pip install 'asap-ray[ascend]'")
        return False
    if config.nixl_peer:
        raise ConfigError(
            f"nixl_peer={config.nixl_peer!r} with device='npu' and torch-npu: KV pages are on the dies, and a decode "
            "instance pulls pages of host memory only (docs/limits.md)"
        )
    return True


def open_ports(config: ServeConfig) -> AscendPorts:
    """This process's die.

    Raises:
        ConfigError: there is none; the text says what is missing.
    """
    die = open_die(config.kernels)
    if not _on_die(config):
        return AscendPorts(die)
    importlib.import_module("torch_npu")  # where it does not load itself with torch
    return TensorPorts(die)


class AscendMoEComm(HostMoEComm):
    """`MoEComm` whose rows and results stay on the die: both are the item itself."""

    def rows_of(self, item: Any) -> Any:
        """The item, which has as many rows as `len` says."""
        return item

    def send_results(self, item: Any, results_RH: Any) -> None:
        """Its results are where the super kernel left them."""
        assert results_RH is item
        self._native.async_combine_send_on_die(item, item.results_at)


class AscendExperts:
    """`MoEStage` of experts on the die."""

    def __init__(self, kernel: _native.ascend.SuperKernel) -> None:
        self._kernel = kernel

    async def super_kernel(self, layer: int, rows_RH: Any, num_rows_E: Any) -> Any:
        """See `MoEStage`; the kernel reads layer and counts from the item, on the die."""
        del layer, num_rows_E
        self._kernel.run(rows_RH, rows_RH.results_at)
        return rows_RH


def _expert_weights(config: ServeConfig, model: Model, experts: Sequence[int]) -> dict[str, Any]:
    """As `SuperKernel` takes them, of the configured type."""
    if config.expert_type is ExpertType.INT8:
        stage = model.int8_expert_stage(experts)
        tables = {"gate_up": stage.gate_up, "down": stage.down}
        scales = {f"{name}_scale": table.scale_LEB.numpy() for name, table in tables.items()}
        return scales | {name: table.weight_LEBA.numpy() for name, table in tables.items()}
    gate_up_LEJH, down_LEHI = model.expert_weights(experts, DTYPES[config.compute_type])
    return {"gate_up": array_of(gate_up_LEJH), "down": array_of(down_LEHI)}


class AscendPorts:
    """See `Ports`. Attention computes on the host; rows go to the die and come back with each layer."""

    place: Place = HostPlace()
    attention_comm: Callable[..., AttentionComm] = HostAttentionComm
    moe_comm = AscendMoEComm

    def __init__(self, die: _native.ascend.Die) -> None:
        self._die = die

    def create(self, name: str, num_bytes: int) -> _native.ascend.SharedBuffer:
        """See `Ports`; device memory has no name."""
        del name
        return _native.ascend.SharedBuffer.create(self._die, num_bytes)

    def address(self, buffer: _native.ascend.SharedBuffer) -> dict[str, Any]:
        """See `Ports`."""
        return {"pid": os.getpid(), "fd": _NO_FILE, "num_bytes": buffer.num_bytes, "key": buffer.key}

    def open(self, peer: Registration) -> _native.ascend.SharedBuffer:
        """See `Ports`."""
        return _native.ascend.SharedBuffer.open(self._die, peer.key, peer.num_bytes)

    def mirror_bytes(self, layout: Layout) -> int:
        """See `Ports`; peers' own buffers are mapped."""
        del layout
        return 0

    def on_failure(self, call: Callable[[DeviceLost], None]) -> None:
        """See `Ports`; a die works by itself."""

    def close(self) -> None:
        """See `Ports`; a die works by itself."""

    def attention(self, **endpoint: Any) -> _native.ascend.AttentionComm:
        """See `Ports`."""
        return _native.ascend.AttentionComm(die=self._die, **endpoint)

    def moe(self, **endpoint: Any) -> _native.ascend.MoEComm:
        """See `Ports`; rows are computed in the type they travel in."""
        del endpoint["compute_type"]
        return _native.ascend.MoEComm(die=self._die, **endpoint)

    def experts(self, config: ServeConfig, model: Model, instance: Instance, moe_device: int) -> MoEStage:
        """See `Ports`; the weights are copied to the die once."""
        kernel = _native.ascend.SuperKernel(
            die=self._die,
            layout=_native.Layout(**dataclasses.asdict(layout_of(instance))),
            moe_device=moe_device,
            row_type=instance.prefill.row_type,
            **_expert_weights(config, model, instance.experts_of(moe_device)),
        )
        return AscendExperts(kernel)


class TensorPorts(AscendPorts):
    """The same in a process with torch-npu: attention computes on the die, and a rank's rows are its tensors."""

    def __init__(self, die: _native.ascend.Die) -> None:
        super().__init__(die)
        self.place = DiePlace(torch.device(DEVICE))
        self.attention_comm = self._tensor_comm

    def experts(self, config: ServeConfig, model: Model, instance: Instance, moe_device: int) -> MoEStage:
        """See `Ports`; `expert_kernel` says by what."""
        if config.expert_kernel == "super_kernel":
            return super().experts(config, model, instance, moe_device)
        weights = model.expert_weights(instance.experts_of(moe_device), DTYPES[config.compute_type])
        return GroupedExperts(self._die, *(each.mT.contiguous().to(DEVICE) for each in weights))

    def _tensor_comm(self, native: Any, layout: Layout, dtype: torch.dtype, deadline_s: float) -> TensorComm:
        return TensorComm(DieEndpoint(native, self._die), layout.hidden, dtype, deadline_s)
