"""The Ray Serve application of a decode instance: one undivided model behind the same routes."""

from __future__ import annotations

import dataclasses
from typing import Any

import fastapi
from ray import serve

from asap_ray.actors.decode_service import DecodeService
from asap_ray.actors.frontend import build_api
from asap_ray.actors.served_model import served_model
from asap_ray.backends.undivided import UndividedHost
from asap_ray.config import ServeConfig, config_from, config_to
from asap_ray.models.model import load_model

_STOP_S = 10.0
"""To leave, after running requests had their deadline."""


def build_decode_app(args: dict[str, Any]) -> serve.Application:
    """The application of one configuration, for `serve run`, `serve deploy` and `asap-ray decode`.

    Args:
        args: the fields of `ServeConfig`. There are no devices: `parallel` says nothing here, nor does `policy`.

    Raises:
        ConfigError: a field is wrong or the checkpoint is not served; nothing was started.
    """
    config = config_from(args)
    served_model(config)
    instance: Any = DecodeInstance  # what the decorators made of it
    deployment = instance.options(graceful_shutdown_timeout_s=config.prefill.deadline_s + _STOP_S)
    application: serve.Application = deployment.bind(config_to(config))
    return application


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=100_000,  # the bound is ours and answers 429
    ray_actor_options={"num_cpus": 1},
    graceful_shutdown_wait_loop_s=1,
)
@serve.ingress()
class DecodeInstance:
    """Ingress and model in one replica."""

    def __init__(self, args: dict[str, Any]) -> None:
        config: ServeConfig = config_from(args)
        self._service = DecodeService(config, served_model(config), UndividedHost(config, load_model(config.model)))

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        api = build_api(self._service)
        api.add_api_route("/pulls", self._pulls, methods=["GET"])
        return api

    async def drain(self) -> None:
        """Not ready from now on; what is here finishes (SIGTERM)."""
        await self._service.close()

    async def __del__(self) -> None:
        await self._service.close()

    async def _pulls(self) -> dict[str, int]:
        """Requests by where their keys and values came from."""
        return dataclasses.asdict(self._service.counts)
