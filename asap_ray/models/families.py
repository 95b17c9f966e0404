"""The supported families by `model_type`. A new one is a file with a reader, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asap_ray.models import deepseek, glm4_moe, mixtral, qwen3_moe
from asap_ray.models.config import ModelConfig
from asap_ray.models.fields import Fields


@dataclass(frozen=True, slots=True)
class Family:
    """The class a checkpoint names, and how its configuration is read."""

    architecture: str
    read: Callable[[Fields, Path], ModelConfig]


FAMILIES: Final[Mapping[str, Family]] = {
    "deepseek_v3": Family("DeepseekV3ForCausalLM", deepseek.read),
    "deepseek_v32": Family("DeepseekV32ForCausalLM", deepseek.read_sparse),
    "glm4_moe": Family("Glm4MoeForCausalLM", glm4_moe.read),
    "kimi_k2": Family("DeepseekV3ForCausalLM", deepseek.read),
    "mixtral": Family("MixtralForCausalLM", mixtral.read),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", qwen3_moe.read),
}


def read_config(directory: Path) -> ModelConfig:
    """Read config.json, and the token ids of generation_config.json where there is one.

    Raises:
        ConfigError: a key is missing, ill-typed, or would change the mathematics and is not supported.
    """
    fields = Fields.read(directory / "config.json")
    model_type = fields.take("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise fields.wrong("model_type", f"one of the supported architectures, {', '.join(FAMILIES)}")
    fields.only("architectures", [family.architecture])
    return family.read(fields, directory)
