"""The Ray Serve application: one frontend over one prefill instance."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastapi
from ray import serve

from asap_ray.actors.api_key import key_required
from asap_ray.actors.claims import Claims, own_name
from asap_ray.actors.duty import Devices
from asap_ray.actors.exporters import RayExporter
from asap_ray.actors.frontend import build_api
from asap_ray.actors.frontend_metrics import FrontendMetrics
from asap_ray.actors.http_errors import error_of
from asap_ray.actors.nixl_channel import libraries
from asap_ray.actors.placement import running_in_app
from asap_ray.actors.prefill_instance import PrefillInstance
from asap_ray.actors.pulse import Pulse
from asap_ray.actors.served_model import ServedModel, served_model
from asap_ray.actors.service import PrefillService
from asap_ray.actors.stragglers import watch_stragglers
from asap_ray.actors.timeline import timeline_route
from asap_ray.actors.tokenizer import load_tokenizer
from asap_ray.batch import Request
from asap_ray.config import config_from, config_to
from asap_ray.errors import AsapError, ConfigError, DeviceLost
from asap_ray.messages import Answered, decode, encode
from asap_ray.scheduler.policies import policy_of
from asap_ray.scheduler.shares import tokens

_log = logging.getLogger(__name__)

_STOP_S: Final = 30.0
"""To end the devices, after running batches had their deadline."""

_REPORT_S: Final = 1.0
"""Between two looks at what is read, not counted, for Ray's metrics."""


def build_app(args: dict[str, Any]) -> serve.Application:
    """The application of one configuration, for `serve run`, `serve deploy` and `asap-ray serve`.

    Args:
        args: the fields of `ServeConfig`, as in deploy/serve/*.yaml.

    Raises:
        ConfigError: a field is wrong or the checkpoint is not served; nothing was started.
    """
    from asap_ray.backends.host import instance_of  # noqa: PLC0415 - these take torch along: two seconds that a
    from asap_ray.models.model import load_model  # noqa: PLC0415 - replica, which computes nothing, does without

    config = config_from(args)
    if ":" in config.name:
        raise ConfigError(f"name={config.name!r} must not have a colon, which its instances and their actors have")
    model = served_model(config)
    policy_of(config.policy, config.prefill, tokens)
    instance_of(config, load_model(config.model))
    if config.nixl_peer:
        libraries(config.nixl_peer)
    frontend: Any = Frontend  # what the decorators made of it
    deployment = frontend.options(graceful_shutdown_timeout_s=2 * config.prefill.deadline_s + _STOP_S)
    application: serve.Application = deployment.bind(config_to(config), dataclasses.replace(model, tokenizer=None))
    return application


@serve.deployment(
    num_replicas=1,  # each has an instance of its own (ADR 0008)
    max_ongoing_requests=100_000,  # the bounded queue is ours and answers 429
    ray_actor_options={"num_cpus": 0},
    health_check_period_s=2,
    health_check_timeout_s=10,  # three in a row, then Serve replaces a frontend that hangs
    graceful_shutdown_wait_loop_s=1,
)
@serve.ingress()
class Frontend:
    """Ingress and scheduler in one replica: a second hop would cost more than a layer (docs/serving.md).

    It loads no torch, so that its successor is there soon when it is killed (docs/failures.md).
    """

    def __init__(self, args: dict[str, Any], model: ServedModel) -> None:
        """Begin to start or find the devices.

        Args:
            args: as `build_app` was given.
            model: what the application was deployed with, without its tokenizer.
        """
        config = config_from(args)  # on the replica's event loop
        key_required(config.api_key_from)  # refused before a device starts
        model = dataclasses.replace(model, tokenizer=load_tokenizer(Path(config.model)))
        self._devices = Devices(partial(running_in_app, config.name))
        self._config = dataclasses.replace(config, name=Claims(config.name).take(own_name()))
        self._is_alone = serve.get_replica_context().world_size == 1
        self._has_started = asyncio.Event()  # or failed to
        self._instance = PrefillInstance(self._config, model)
        self._metrics = FrontendMetrics(self._config, model.name, RayExporter(app=self._config.name))
        self._service = PrefillService(self._config, model, self._instance, self._metrics)
        self._failure = ""
        self._pulse = asyncio.create_task(Pulse(own_name()).run())
        self._life = asyncio.create_task(self._live())
        self._reports = asyncio.create_task(self._report())
        self._stragglers = asyncio.create_task(watch_stragglers(self._instance.paces, self._metrics.slowness))

    def __serve_build_asgi_app__(self) -> fastapi.FastAPI:
        api = build_api(self._service)
        api.add_api_route("/duty", self.duty, methods=["GET"])
        api.add_api_route("/timeline", timeline_route(self.timeline), methods=["GET"])
        api.add_api_route("/leases", self._leases, methods=["GET"])
        return api

    async def check_health(self) -> None:
        """Ray Serve replaces a frontend that could not bring a device back; the next one starts the instance afresh.

        Serve's first check comes before requests and before it replaces another replica. One of several lets it wait
        for its devices; a single one answers at once, so that `/ready` can say who is missing.
        """
        if not self._is_alone:
            await self._has_started.wait()
        if self._failure:
            raise DeviceLost(self._failure)

    async def prefill(self, message: bytes) -> AsyncIterator[bytes]:
        """A request and its tokens as messages, for callers inside the cluster (`replay --app`)."""
        try:
            request = dataclasses.replace(decode(Request, message), arrival_s=time.monotonic())
            async for event in self._service.generate([request]):
                yield encode(Answered(event.token, dataclasses.asdict(event.ttft) if event.ttft else {}))
        except AsapError as error:
            status, body, _ = error_of(error)
            self._metrics.refused(status)
            yield encode(Answered(status=status, error=body["error"]["message"]))

    async def describe(self) -> dict[str, Any]:
        """What `replay --app` needs to know of the model (`workload.http_target.ServedModel`)."""
        model, limits = self._service.model, self._service.limits
        return {"name": model.name, "max_model_len": limits.max_prompt_tokens, "vocab_size": model.vocab_size}

    async def duty(self) -> dict[str, dict[str, float]]:
        """Totals of every device's compute stream in all replicas, by name: the duty cycle is `compute_s`'s growth."""
        return {name: dataclasses.asdict(each) for name, each in (await self._devices.duty()).items()}

    async def exposition(self) -> str:
        """What `GET /metrics` answers."""
        self._service.report()
        return self._metrics.exposition().decode()

    async def timeline(self, last_s: float) -> bytes:
        """The spans of every device in the last seconds, as a message (`Timeline`)."""
        return encode(await self._instance.timeline(last_s))

    async def drain(self) -> None:
        """Not ready from now on: fail what is queued, let running batches finish (SIGTERM)."""
        await self._service.close()

    async def __del__(self) -> None:
        tasks = (self._life, self._reports, self._stragglers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._service.close()
        await self._service.hand_off.close()
        await self._instance.stop()
        self._pulse.cancel()

    async def _live(self) -> None:
        try:
            await self._service.hand_off.open()
            await self._instance.start()
            self._service.open_caches()
            self._has_started.set()
            async for change in self._instance.watch():
                if change.lost:
                    self._service.lose(change.group, change.lost)
                else:
                    self._service.restore(change.group)
        except Exception as error:  # whatever it is, the frontend must not pretend to wait for a start
            _log.exception("the instance is lost")
            self._failure = f"{type(error).__name__}: {error}"
            self._service.give_up(self._failure)
            self._has_started.set()

    async def _report(self) -> None:
        try:
            while True:
                self._service.report()
                self._metrics.report_devices(self._instance.vitals)
                await asyncio.sleep(_REPORT_S)
        except Exception:  # whatever it is, the instance serves without
            _log.exception("metrics that are read once a second are not exported any more")

    async def _leases(self) -> dict[str, int]:
        """Hand-offs to decode instances since the start, by how they ended, and those that are open."""
        return self._service.hand_off.totals()
