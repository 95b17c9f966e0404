"""The supported families by `model_type`. A new one is a file with a reader, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
    return _read(Fields.read(directory / "config.json"), directory)


def understand(config: dict[str, Any], directory: Path) -> ModelConfig:
    """The same of a configuration that is to be written into a directory."""
    return _read(Fields(config, str(directory / "config.json")), directory)


def _read(fields: Fields, directory: Path) -> ModelConfig:
    model_type = fields.take("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise fields.wrong("model_type", f"one of the supported architectures, {', '.join(FAMILIES)}")
    fields.only("architectures", [family.architecture])
    return family.read(fields, directory)
