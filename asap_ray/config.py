"""The configuration of a served instance, and how it crosses a wire."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from asap_ray import __version__
from asap_ray.errors import ConfigError
from asap_ray.placement import Placement
from asap_ray.spec import ExpertType, KVCacheSpec, ParallelSpec, PrefillSpec, RowType
from asap_ray.strict import build

DEVICES: Final = ("cpu", "npu")
"""Devices whose backend can serve; cuda follows (docs/limits.md)."""

FABRICS: Final = ("auto", "shm", "nixl")
"""How rows travel: `auto` is shm between devices of one node and nixl between nodes (docs/fabric.md)."""

EXPERT_KERNELS: Final = ("super_kernel", "grouped_matmul")
"""What computes experts on a die: ours, or torch-npu's grouped products (docs/ascend.md)."""

KEY_SOURCES: Final = ("env:", "file:")
"""How `api_key_from` may start."""

MIN_ORPHAN_S: Final = 30.0


def default_prefill() -> PrefillSpec:
    """Limits that suit a small model on a CPU; `docs/serving.md` says how to choose others."""
    return PrefillSpec(max_tokens=8192, solo_tokens=2048, inflection_tokens=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One served instance: a checkpoint on devices, and the bounds of its queue."""

    model: str  # directory of a Hugging Face checkpoint
    parallel: ParallelSpec
    prefill: PrefillSpec = field(default_factory=default_prefill)
    kv_cache: KVCacheSpec = field(default_factory=KVCacheSpec)
    placement: Placement | None = None  # of experts; None: in the order of their ids (docs/placement.md)
    device_memory_bytes: int | None = None  # of one device; None: its share of most of the node's (docs/kvcache.md)
    name: str = "asap"  # prefix of its actors' names; two instances need two
    served_model_name: str = ""  # empty: the directory's name
    api_key_from: str = ""  # env:NAME or file:PATH, read by the frontend; empty: everybody may ask
    device: str = "cpu"
    fabric: str = "auto"  # of `FABRICS`
    kernels: str = ""  # folder of the Ascend kernels; empty: where `make ascend` puts them
    expert_kernel: str = EXPERT_KERNELS[0]
    compute_type: RowType = RowType.FLOAT32
    expert_type: ExpertType = ExpertType.FLOAT
    threads: int = 1  # CPU threads of one device
    policy: str = "paper"  # what runs next, and where; what won on the devices that serve (docs/async_vs_sync.md)
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1 << 20
    max_answer_tokens: int = 1024  # a longer answer is refused: decode here is correct, not fast
    ttft_objective_s: float = 5.0  # the paper's (5.1); only the lateness of first tokens is measured by it
    slo_ttft_s: float | None = None  # refuse at once what would have its first token later (docs/scheduler.md)
    start_timeout_s: float = 180.0
    lease_s: float = 60.0  # blocks wait so long for a decode instance from its last sign of life (docs/kvcache.md)
    nixl_peer: str = ""  # side channel, HOST:PORT, of the vLLM that decodes; empty: hand-off through shared memory
    orphan_timeout_s: float = 120.0  # devices that no frontend has asked after for so long end themselves

    def __post_init__(self) -> None:
        if self.placement:
            self.placement.check_devices(self.parallel.moe_devices)
        self._check_device()
        if min(self.threads, self.max_queued_requests, self.max_queued_tokens) < 1 or self.start_timeout_s <= 0:
            raise ConfigError(f"threads, queue bounds and start_timeout_s must be positive: {self}")
        if not self.lease_s > 0:
            raise ConfigError(f"lease_s={self.lease_s} must be positive")
        if self.ttft_objective_s <= 0:
            raise ConfigError(f"ttft_objective_s={self.ttft_objective_s} must be positive")
        if self.slo_ttft_s is not None and self.slo_ttft_s <= 0:
            raise ConfigError(f"slo_ttft_s={self.slo_ttft_s} must be positive; without an objective leave it out")
        if self.orphan_timeout_s < MIN_ORPHAN_S:
            raise ConfigError(
                f"orphan_timeout_s={self.orphan_timeout_s} must be at least {MIN_ORPHAN_S}: "
                "a frontend whose devices are slow to answer asks that seldom"
            )
        if self.api_key_from and not self.api_key_from.startswith(KEY_SOURCES):
            raise ConfigError("api_key_from must be env:NAME or file:PATH, where the key is; never the key itself")
        if self.device_memory_bytes is not None and self.device_memory_bytes < 1:
            raise ConfigError(f"device_memory_bytes={self.device_memory_bytes} must be at least 1")
        if self.max_answer_tokens < 1:
            raise ConfigError(f"max_answer_tokens={self.max_answer_tokens} must be at least 1, the first token")
        if self.max_queued_tokens < self.prefill.max_tokens:
            raise ConfigError(
                f"max_queued_tokens={self.max_queued_tokens} must admit one longest prompt, "
                f"max_tokens={self.prefill.max_tokens}"
            )
        if self.prefill.row_type is not self.compute_type and self.compute_type is not RowType.FLOAT32:
            raise ConfigError(
                f"row_type={self.prefill.row_type} with compute_type={self.compute_type}: rows travel in the "
                "compute type, or narrower than float32"
            )

    def _check_device(self) -> None:
        """What goes with which kind of device."""
        if self.device not in DEVICES:
            raise ConfigError(f"device={self.device!r} is not served yet; known devices: {', '.join(DEVICES)}")
        if self.fabric not in FABRICS:
            raise ConfigError(f"fabric={self.fabric!r}; known fabrics: {', '.join(FABRICS)}")
        if self.device == "npu" and self.fabric == "nixl":
            raise ConfigError("fabric='nixl' with device='npu': dies open each other's memory by key, inside one node")
        if self.expert_kernel not in EXPERT_KERNELS:
            raise ConfigError(f"expert_kernel={self.expert_kernel!r}; known kernels: {', '.join(EXPERT_KERNELS)}")
        if self.expert_kernel == "grouped_matmul" and (self.device != "npu" or self.expert_type is ExpertType.INT8):
            raise ConfigError(
                f"expert_kernel='grouped_matmul' with expert_type={self.expert_type} and device={self.device!r}: it is "
                "for float experts on dies"
            )
        if self.device == "npu" and self.prefill.row_type is not self.compute_type:
            raise ConfigError(
                f"row_type={self.prefill.row_type} with compute_type={self.compute_type}: Ascend kernels compute "
                "on rows of the type they travel in"
            )


def config_from(mapping: Mapping[str, Any]) -> ServeConfig:
    """Build a `ServeConfig` from parsed YAML or msgpack; every unknown key or wrong type is a ConfigError."""
    return build(ServeConfig, mapping, "the configuration")


def config_to(config: ServeConfig) -> dict[str, Any]:
    """The inverse of `config_from`, of plain dicts, strings and numbers."""
    return dataclasses.asdict(config, dict_factory=_plain)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.value if isinstance(value, enum.Enum) else value for key, value in items}


def fingerprint_of(config: ServeConfig, model_fingerprint: str) -> dict[str, str]:
    """What devices must agree on before they join: every field of the configuration, and the checkpoint itself."""
    fields = {"version": __version__, "model": model_fingerprint}
    for key, value in config_to(config).items():
        if isinstance(value, dict):
            fields |= {f"{key}.{inner}": str(inner_value) for inner, inner_value in value.items()}
        elif key != "model":
            fields[key] = str(value)
    return fields
