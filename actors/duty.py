"""How busy devices are, whoever asks them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from asap_ray.actors.placement import NAMESPACE
from asap_ray.actors.recovery import ANSWER_S
from asap_ray.batch import Duty
from asap_ray.messages import decode
from asap_ray.tracks import device_order


def _find(name: str) -> Any:
    return ray.get_actor(name, namespace=NAMESPACE)


class Devices:
    """Devices of any replica; calls to Ray's control store block, so a thread makes them, and each is found once."""

    def __init__(self, names: Callable[[], Sequence[str]], find: Callable[[str], Any] = _find) -> None:
        """`names` says who is there now; `find` raises ValueError of one that is not."""
        self._names = names
        self._find = find
        self._handles: dict[str, Any] = {}

    async def duty(self) -> dict[str, Duty]:
        """Totals of their compute streams, by name; one that does not answer is left out."""
        handles = await asyncio.to_thread(self._running)
        replies = dict(zip(handles, await asyncio.gather(*map(_ask, handles.values())), strict=True))
        self._handles = {name: handle for name, handle in handles.items() if replies[name] is not None}
        return {name: decode(Duty, reply) for name, reply in replies.items() if reply is not None}

    def _running(self) -> dict[str, Any]:
        known, handles = self._handles, {}
        for name in sorted(self._names(), key=device_order):
            with contextlib.suppress(ValueError):  # gone meanwhile
                handles[name] = known.get(name) or self._find(name)
        return handles


async def _ask(handle: Any) -> bytes | None:
    with contextlib.suppress(RayError, TimeoutError):  # not there, or not well
        reply: bytes = await asyncio.wait_for(handle.duty.remote(), ANSWER_S)
        return reply
    return None
