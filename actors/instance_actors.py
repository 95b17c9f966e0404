"""The actors of one instance by name: started or found, asked, ended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_placement_group, remove_placement_group

from asap_ray.actors.attention_group import AttentionGroup
from asap_ray.actors.moe_device import MoEDevice
from asap_ray.actors.placement import (
    NAMESPACE,
    RESOURCE,
    bundle,
    device_names,
    group_names,
    reserve,
    running_names,
    wait_for_places,
)
from asap_ray.actors.recovery import POLL_S, Refused
from asap_ray.config import ServeConfig
from asap_ray.messages import encode

_GONE_S: Final = 10.0


class InstanceActors:
    """Handles of D groups and E devices, as one frontend has them."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self.groups = group_names(config)
        self.devices = device_names(config)
        self._handles: dict[str, Any] = {}
        self._placement_id: Any = None

    @property
    def names(self) -> list[str]:
        """All of them, in the order of their bundles."""
        return self.groups + self.devices

    def find(self) -> None:
        """Take the actors that run.

        Raises:
            ValueError: one is not there.
        """
        self._placement_id = get_placement_group(self._config.name).id
        self._handles = {name: ray.get_actor(name, namespace=NAMESPACE) for name in self.names}

    async def create(self, timeout_s: float) -> None:
        """Start them all, in places that are waited for so long.

        Raises:
            ConfigError: the cluster has too few devices, or too few are free.
        """
        config, message = self._config, encode(self._config)
        placement = reserve(config)
        self._placement_id = placement.id
        await asyncio.to_thread(wait_for_places, placement, config.parallel.num_devices, timeout_s)
        kinds: list[tuple[type, int, int]]  # with the calls an actor may have open: a batch each, or control alone
        kinds = [(AttentionGroup, i, 1000) for i in range(config.parallel.dp_groups)]
        kinds += [(MoEDevice, e, 16) for e in range(config.parallel.moe_devices)]
        for index, (name, (kind, number, concurrency)) in enumerate(zip(self.names, kinds, strict=True)):
            self._handles[name] = (
                ray.remote(kind)
                .options(
                    name=name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    num_cpus=0,
                    resources={RESOURCE: 1},
                    max_concurrency=concurrency,
                    max_restarts=-1,
                    scheduling_strategy=bundle(placement, index),
                )
                .remote(message, number)
            )

    async def clear(self) -> None:
        """End what is left of those that were started or found here, never their successors."""
        with contextlib.suppress(ValueError):
            if get_placement_group(self._config.name).id == self._placement_id:
                await clear_instance(self._config.name)

    def stream(self, name: str, method: str, *args: bytes | str) -> Any:
        """The references that a generator of an actor yields."""
        return getattr(self._handles[name], method).options(num_returns="streaming").remote(*args)

    def tell(self, name: str, method: str, *args: list[str]) -> None:
        """Call a method and wait for nothing, whatever becomes of it."""
        with contextlib.suppress(RayError):
            getattr(self._handles[name], method).remote(*args)

    async def demand(self, names: list[str], method: str, timeout_s: float, *args: bytes) -> dict[str, Any]:
        """Call a method on several actors.

        Raises:
            Refused: names those that did not do as asked, and why.
        """
        replies = await self.ask(names, method, *args, timeout_s=timeout_s)
        refused = {name: reply for name, reply in replies.items() if isinstance(reply, Refusal)}
        if refused:
            raise Refused(method, refused)
        return replies

    async def ask(self, names: list[str], method: str, *args: bytes | str | float, timeout_s: float) -> dict[str, Any]:
        """Call a method on several actors; a `Refusal` stands for an answer that did not come."""
        answers = await asyncio.gather(*(self.call(name, method, args, timeout_s) for name in names))
        return dict(zip(names, answers, strict=True))

    async def call(self, name: str, method: str, args: tuple[Any, ...], timeout_s: float | None) -> Any:
        """What one of them answers, or a `Refusal`."""
        if name not in self._handles:
            return Refusal("not started")
        try:
            return await asyncio.wait_for(getattr(self._handles[name], method).remote(*args), timeout_s)
        except TimeoutError:
            return NoAnswer(f"no answer within {timeout_s:.1f} s")
        except RayError as error:
            return Refusal(reason_of(error))


class Refusal(str):
    """Why an actor did not do as asked."""


class NoAnswer(Refusal):
    """It has said nothing in time."""


async def clear_instance(name: str) -> None:
    """End every actor of the instance `name` and free its devices, whoever uses them; what is not there is skipped."""
    for actor in running_names(name):
        with contextlib.suppress(ValueError):  # gone meanwhile
            ray.kill(ray.get_actor(actor, namespace=NAMESPACE))
    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(name))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_gone(name), _GONE_S)


async def _gone(name: str) -> None:
    while running_names(name):
        await asyncio.sleep(POLL_S)


def reason_of(error: RayError) -> str:
    """The last line that says something of a Ray error."""
    lines = [line.strip() for line in str(getattr(error, "cause", None) or error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
