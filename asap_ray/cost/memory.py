"""Bytes of every device of an instance, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asap_ray.cost.hardware import Hardware
from asap_ray.cost.shapes import Shape
from asap_ray.layout import layout_of
from asap_ray.spec import NUM_SLOTS, Instance, ModelSpec, ParallelSpec, PrefillSpec

RESERVE_SHARE: Final = 0.1
"""Of a device's memory, for activations, workspaces and the runtime: assumed, as serving engines commonly do."""

UNQUANTISED_BYTES: Final = 2
"""Embedding, output head and routers stay in 16 bits whatever the other weights are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one kind of device holds, in bytes, and what it has."""

    device: str
    weights_bytes: int
    buffer_bytes: int = 0
    kv_bytes: int = 0
    reserve_bytes: int
    memory_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.buffer_bytes + self.kv_bytes + self.reserve_bytes

    @property
    def fits(self) -> bool:
        """Whether the device has so much."""
        return self.total_bytes <= self.memory_bytes

    @property
    def share(self) -> float:
        """Of the device's memory; above 1 it does not fit."""
        return self.total_bytes / self.memory_bytes

    def text(self) -> str:
        """The arithmetic, in decimal GB."""
        parts = {
            "weights": self.weights_bytes,
            "buffers": self.buffer_bytes,
            "KV": self.kv_bytes,
            "reserve": self.reserve_bytes,
        }
        terms = " + ".join(f"{what} {num_bytes / 1e9:.1f}" for what, num_bytes in parts.items() if num_bytes)
        sign = "<=" if self.fits else ">"
        return f"{self.device}: {terms} = {self.total_bytes / 1e9:.1f} GB {sign} {self.memory_bytes / 1e9:.1f} GB"


def instance_of(shape: Shape, parallel: ParallelSpec, prefill: PrefillSpec) -> Instance:
    """What the buffers are laid out for.

    Raises:
        ConfigError: more MoE devices than experts.
    """
    model = ModelSpec(
        num_layers=shape.num_layers, hidden=shape.hidden, num_experts=shape.num_experts, top_k=shape.top_k
    )
    return Instance(model=model, parallel=parallel, prefill=prefill)


def disaggregated(shape: Shape, hardware: Hardware, instance: Instance) -> tuple[Need, Need]:
    """An attention rank and the fullest MoE device of the asynchronous system (3.1, Table 2)."""
    layout = layout_of(instance)
    reserve_bytes = int(RESERVE_SHARE * hardware.hbm_bytes)
    return (
        Need(
            device=f"attention rank of {instance.parallel.tp}",
            weights_bytes=_attention_bytes(shape, instance.parallel.tp),
            buffer_bytes=layout.attention_bytes,
            kv_bytes=_kv_bytes(shape, instance),
            reserve_bytes=reserve_bytes,
            memory_bytes=hardware.hbm_bytes,
        ),
        Need(
            device=f"MoE device of {instance.parallel.moe_devices}",
            weights_bytes=_experts_bytes(shape, layout.max_local_experts),
            buffer_bytes=layout.moe_bytes,
            reserve_bytes=reserve_bytes,
            memory_bytes=hardware.hbm_bytes,
        ),
    )


def collocated(shape: Shape, hardware: Hardware, instance: Instance) -> Need:
    """A device of a synchronous system, which is rank and expert device at once: E = D * T.

    Its all-to-all is charged the same two buffers.
    """
    layout = layout_of(instance)
    return Need(
        device=f"device of {instance.parallel.moe_devices}",
        weights_bytes=_attention_bytes(shape, instance.parallel.tp) + _experts_bytes(shape, layout.max_local_experts),
        buffer_bytes=layout.attention_bytes + layout.moe_bytes,
        kv_bytes=_kv_bytes(shape, instance),
        reserve_bytes=int(RESERVE_SHARE * hardware.hbm_bytes),
        memory_bytes=hardware.hbm_bytes,
    )


def _attention_bytes(shape: Shape, tp: int) -> int:
    """Everything but routed experts, divided over the ranks of a group; each rank has all routers."""
    num_moe_layers = shape.num_layers - shape.num_dense_layers
    dense_params = shape.num_dense_layers * 3 * shape.hidden * shape.dense_intermediate
    divided_bytes = (shape.num_layers * shape.attention_params + dense_params) * shape.weight_bytes
    vocabulary_bytes = 2 * shape.vocab_size * shape.hidden * UNQUANTISED_BYTES  # embedding and output head
    router_bytes = num_moe_layers * shape.hidden * shape.num_experts * UNQUANTISED_BYTES
    return int((divided_bytes + vocabulary_bytes) / tp + router_bytes)


def _experts_bytes(shape: Shape, num_local_experts: int) -> int:
    """So many experts of every MoE layer."""
    num_moe_layers = shape.num_layers - shape.num_dense_layers
    return num_moe_layers * num_local_experts * shape.expert_params * shape.weight_bytes


def _kv_bytes(shape: Shape, instance: Instance) -> int:
    """Keys and values of two longest prompts a group: every slot may hold chunks of one, and nothing is kept later."""
    num_shares = min(instance.parallel.tp, shape.num_kv_heads)
    return NUM_SLOTS * instance.prefill.max_tokens * shape.num_layers * shape.kv_bytes // num_shares
