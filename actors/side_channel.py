"""Where decode instances ask after the blocks that a prefill instance keeps for them: one call a connection.

Its address travels as `remote_host` and `remote_port` of `kv_transfer_params`. It is for one host and one user, as
shared memory is: it listens on the loopback alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from asap_ray.errors import ConfigError, PeerTimeout, Unavailable
from asap_ray.messages import LeaseAnswer, LeaseCall, Pages, decode, encode

HOST: Final = "127.0.0.1"
CALL_S: Final = 5.0
"""A call takes no longer: vLLM's own limit for a handshake."""

_LENGTH_BYTES: Final = 4
_MAX_BYTES: Final = 1 << 20

_T = TypeVar("_T")


class SideChannel:
    """The listening end, on the loop that opened it."""

    def __init__(self, answer: Callable[[LeaseCall], LeaseAnswer]) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None

    def address(self, engine_id: str) -> tuple[str, int]:  # noqa: ARG002 - one for all
        """See `Channel`."""
        assert self._server is not None, "the side channel is not open"
        return HOST, int(self._server.sockets[0].getsockname()[1])

    def join(self, engine_id: str, ranks: tuple[Pages, ...]) -> None:
        """See `Channel`: `read` tells where the pages are."""

    def leave(self, engine_id: str) -> None:
        """See `Channel`."""

    async def open(self) -> None:
        """Listen on a port that is free."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)

    async def close(self) -> None:
        """Listen no longer."""
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                await _write(writer, encode(self._answer(await _read(reader, LeaseCall))))
        except (OSError, EOFError, ConfigError, TimeoutError):  # whoever called is gone, or no peer of ours
            pass
        finally:
            writer.close()


async def ask(host: str, port: int, call: LeaseCall) -> LeaseAnswer:
    """What the prefill instance says.

    Raises:
        Unavailable: nobody listens there, or nobody who understands.
        PeerTimeout: no answer within `CALL_S`.
    """
    who = f"the prefill instance at {host}:{port}"
    try:
        async with asyncio.timeout(CALL_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await _write(writer, encode(call))
                return await _read(reader, LeaseAnswer)
            finally:
                writer.close()
    except TimeoutError:
        raise PeerTimeout(f"{who} did not answer {call.verb!r} within {CALL_S:g} s") from None
    except (OSError, EOFError, ValueError, OverflowError) as error:  # no message of ours, or no address
        raise Unavailable(f"{who}: {error}") from None


async def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)
    await writer.drain()


async def _read(reader: asyncio.StreamReader, kind: type[_T]) -> _T:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > _MAX_BYTES:
        raise ConfigError(f"a message of {length} bytes; the limit is {_MAX_BYTES}")
    return decode(kind, await reader.readexactly(length))
