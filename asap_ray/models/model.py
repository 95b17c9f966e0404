"""A checkpoint that is understood, and the stages made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asap_ray.models.config import ModelConfig
from asap_ray.models.decoder import Decoder
from asap_ray.models.experts import load_expert_weights, load_experts
from asap_ray.models.families import read_config
from asap_ray.models.host_kernels import HOST
from asap_ray.models.int8_experts import Int8ExpertStage, load_int8_experts
from asap_ray.models.kernels import Kernels
from asap_ray.models.tensors import check_names
from asap_ray.models.undivided import Undivided
from asap_ray.models.weights import Checkpoint, Shard
from asap_ray.protocol import Collective, MoEStage
from asap_ray.spec import ExpertType, ModelSpec


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint of a supported family; its weights are read when a stage is made."""

    directory: Path
    config: ModelConfig
    fingerprint: str  # of configuration and weights: devices that differ must not join

    @property
    def spec(self) -> ModelSpec:
        """What the engine needs to know."""
        return self.config.spec

    def attention_stage(self, collective: Collective, compute_dtype: torch.dtype, kernels: Kernels = HOST) -> Decoder:
        """Everything but the routed experts, the share of one rank, where `kernels` compute."""
        with Checkpoint(self.directory, self.config.fp8_block) as checkpoint:
            shard = Shard(checkpoint, collective.rank, collective.size, compute_dtype, kernels)
            return Decoder(shard, self.config, collective)

    def expert_stage(self, experts: Sequence[int], compute_dtype: torch.dtype) -> MoEStage:
        """The routed experts of one device, by their global ids."""
        with Checkpoint(self.directory, self.config.fp8_block) as checkpoint:
            return load_experts(checkpoint, self.config, experts, compute_dtype)

    def expert_weights(self, experts: Sequence[int], compute_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Their weights alone, for a device with kernels of its own: [L, E, 2 I, H] and [L, E, H, I]."""
        with Checkpoint(self.directory, self.config.fp8_block) as checkpoint:
            return load_expert_weights(checkpoint, self.config, experts, compute_dtype)

    def int8_expert_stage(self, experts: Sequence[int]) -> Int8ExpertStage:
        """The same in int8, for rows of any compute type."""
        with Checkpoint(self.directory, self.config.fp8_block) as checkpoint:
            return load_int8_experts(checkpoint, self.config, experts)

    def undivided(
        self, collective: Collective, compute_dtype: torch.dtype, expert_type: ExpertType = ExpertType.FLOAT
    ) -> Undivided:
        """All of it; `collective` is that of a group of one."""
        num_experts = self.spec.num_experts
        all_experts = range(num_experts)
        is_int8 = expert_type is ExpertType.INT8
        experts = self.int8_expert_stage(all_experts) if is_int8 else self.expert_stage(all_experts, compute_dtype)
        return Undivided(self.attention_stage(collective, compute_dtype), experts, num_experts)


def load_model(directory: str | Path) -> Model:
    """Read the configuration of a checkpoint, and fingerprint it; no weights yet.

    Raises:
        ConfigError: not a checkpoint of a supported family, or one with a setting that is not supported; a tensor is
            missing, or is there and not understood.
    """
    path = Path(directory)
    config = read_config(path)
    with Checkpoint(path) as checkpoint:
        check_names(checkpoint.names, config, path)
        digest = hashlib.sha256(f"{config}{checkpoint.fingerprint()}".encode())
    return Model(path, config, digest.hexdigest())
