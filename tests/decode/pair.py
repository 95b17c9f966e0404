"""A prefill and a decode instance behind their HTTP routes, on ports of this host."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from asap_ray.actors.decode_service import DecodeService
from asap_ray.actors.frontend import Service, build_api
from asap_ray.actors.service import PrefillService
from asap_ray.backends.undivided import UndividedHost
from asap_ray.models.model import load_model
from tests.decode.conftest import config_of, served_of
from tests.decode.prefilled import LocalGroups

ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What routers send to a prefill instance."""


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Pair:
    """Two instances, and where they listen."""

    prefill: PrefillService
    decode: DecodeService
    prefill_url: str
    decode_url: str


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[str]:
    """The routes of a service; yields their URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(build_api(service), port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    """Both instances of one model, on this loop."""
    config, model = config_of(directory, 64), served_of(directory)
    prefill = PrefillService(config, model, LocalGroups(directory))
    decode = DecodeService(config, model, UndividedHost(config, load_model(directory)))
    await prefill.hand_off.open()
    prefill.open_caches()
    async with listening(prefill) as prefill_url, listening(decode) as decode_url:
        yield Pair(prefill, decode, prefill_url, decode_url)
    await asyncio.gather(prefill.close(), decode.close())
    await prefill.hand_off.close()
