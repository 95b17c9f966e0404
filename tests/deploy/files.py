"""Where the deployment files are, and Serve's configuration as Ray and we read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ray.serve.schema import ServeDeploySchema

from asap_ray.config import DEVICES, ServeConfig, config_from
from asap_ray.errors import ConfigError

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
SERVE_FILES: Final = sorted((DEPLOY / "serve").glob("*.yaml"))
MANIFESTS: Final = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCKERFILES: Final = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
SCRIPTS: Final = sorted(DEPLOY.glob("*/*.sh"))


def serve_configs(parsed: dict[str, Any]) -> dict[str, ServeConfig]:
    """The instances of a Serve file, by the names of their applications.

    Raises:
        ValidationError: Ray refuses the file.
        ConfigError: Ray does not know one of its keys, which it would ignore; or we refuse its `args`.
    """
    schema = ServeDeploySchema.model_validate(parsed)
    if ignored := list(_lost(parsed, schema.model_dump(warnings=False), "")):
        raise ConfigError(f"unknown to Ray Serve: {', '.join(ignored)}")
    return {application.name: _instance(application.args) for application in schema.applications}


def _instance(args: dict[str, Any]) -> ServeConfig:
    if args.get("device") == "npu" and "npu" not in DEVICES:  # the file says that it is not served yet
        args = args | {"device": "cpu"}
    return config_from(args)


def _lost(given: Any, kept: Any, where: str) -> Iterator[str]:
    """Paths of the keys that are given and were not kept."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in kept:
                yield from _lost(value, kept[key], f"{where}{key}.")
            else:
                yield f"{where}{key}"
    if isinstance(given, list):
        for one_given, one_kept in zip(given, kept, strict=True):
            yield from _lost(one_given, one_kept, where)
