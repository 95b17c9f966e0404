"""The thread that carries a device's messages to and from other hosts."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from asap_ray import _native
from asap_ray.backends.mirrors import End
from asap_ray.backends.nixl_link import NixlLink
from asap_ray.errors import DeviceLost
from asap_ray.messages import Registration

_EAGER_S: Final = 200e-6
"""After the last event the carrier does not sleep for so long: an answer may be under way."""

_MAX_PAUSE_S: Final = 2e-3
"""How late an idle carrier may notice what comes from another host; what leaves wakes it at once."""

_PAUSE_SHARE: Final = 0.25
"""It sleeps for this share of the time since the last event: who has waited long may wait a little longer."""

_log = logging.getLogger(__name__)


class Carrier:
    """Carries for one end over one link, until `close` or an error."""

    def __init__(self, link: NixlLink, end: End, on_failure: Callable[[DeviceLost], None]) -> None:
        """`on_failure` hears of the error that ends it, in its thread."""
        self._link = link
        self._end = end
        self._on_failure = on_failure
        self._changing = threading.Lock()  # `join` is for any thread
        self._closed = threading.Event()
        self._watch: _native.Watch | None = None
        self._thread = threading.Thread(target=self._run, name="asap-carrier", daemon=True)

    def join(self, peer: Registration, buffer: _native.SharedBuffer) -> _native.SharedBuffer:
        """A peer on another host, and what this device may write to in its place; what it does: a repetition is one.

        It may follow a dead one.
        """
        with self._changing:
            mirror = self._end.mirror(buffer)
            name, kept = self._link.join(peer, buffer, mirror.span)
            if kept is buffer:
                self._leave(peer)
                self._end.join(name, peer, mirror)
                self._watch = _native.Watch(self._end.bells())
        if not self._thread.ident:
            atexit.register(self.close)  # a thread in native code must not see the interpreter go
            self._thread.start()
        return kept

    def forget(self, successor: Registration) -> None:
        """This one is not carried for: nothing goes to a dead one in its place any more, nor comes from it."""
        with self._changing:
            self._leave(successor)
            bells = self._end.bells()
            self._watch = _native.Watch(bells) if bells else None

    @property
    def counts(self) -> tuple[int, int]:
        """Parcels sent and notes received since the start."""
        return self._link.num_sent, self._link.num_received

    def close(self) -> None:
        """Carry nothing more. For any thread."""
        self._closed.set()
        atexit.unregister(self.close)
        if self._thread.ident and self._thread is not threading.current_thread():
            self._thread.join()

    def _leave(self, successor: Registration) -> None:
        if dead := self._end.leave(successor):
            self._link.leave(dead)

    def _run(self) -> None:
        try:
            self._carry_on()
        except Exception as error:  # crosses a thread: whoever waits for what is not carried must hear of it
            _log.exception("the carrier failed")
            why = f"nothing is carried between this device and other hosts: {type(error).__name__}: {error}"
            self._on_failure(DeviceLost(why))

    def _carry_on(self) -> None:
        last_s = time.monotonic()
        while not self._closed.is_set():
            is_busy, watch = self.carry(), self._watch
            now = time.monotonic()
            if is_busy:
                last_s = now
            elif now - last_s > _EAGER_S:
                pause_s = min((now - last_s) * _PAUSE_SHARE, _MAX_PAUSE_S)
                wait = watch.wait if watch else self._closed.wait
                wait(pause_s)

    def carry(self) -> bool:
        """One round; whether there was anything to do. For any thread."""
        with self._changing:
            return self._carry()

    def _carry(self) -> bool:
        is_busy = self._link.is_writing
        for name, note in self._link.poll():
            is_busy = True
            try:
                self._end.take(name, note)
            except (ValueError, IndexError) as error:
                _log.error("dropped a note from another host: %s", error)
        for parcel in self._end.parcels():
            is_busy = True
            self._link.send(parcel)
        return is_busy
