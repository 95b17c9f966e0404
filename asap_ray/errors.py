"""Every error a caller can meet, each saying what happened, with which value, and what to do.

AsapError
├── ConfigError       a setting is wrong; nothing was started (also a ValueError)
├── RequestError      one request is wrong; HTTP 400 (also a ValueError)
├── Overloaded        the bounded queue is full; HTTP 429
├── Unavailable       the instance cannot serve now; HTTP 503
├── Overflow          more rows than a slot holds; nothing was written
├── CorruptMessage    a peer's header contradicts the layout; nothing was computed from it
├── PeerTimeout       a deadline passed; names the peer and the phase
├── DeviceLost        a device is gone: its process, or what carries between it and other hosts
└── Closed            the instance is stopping
"""

from __future__ import annotations


class AsapError(Exception):
    """Root of the tree above."""


class ConfigError(AsapError, ValueError):
    """The caller's configuration is wrong; the text names the key, the value and the limit."""


class RequestError(AsapError, ValueError):
    """One request is wrong; `param` names the offending field, or is None for the body as a whole."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Overloaded(AsapError):
    """The queue is full; `retry_after_s` says when to come back."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(AsapError):
    """The instance is not ready; the text says who is missing."""


class Overflow(AsapError):
    """A message is larger than its slot; nothing was written."""


class CorruptMessage(AsapError):
    """A header in a shared buffer contradicts the layout; nothing was computed from it."""


class PeerTimeout(AsapError):
    """A wait reached its deadline; the text names the peer and the phase."""


class DeviceLost(AsapError):
    """A device's process is gone, or what carries between it and other hosts; the text says which."""


class Closed(AsapError):
    """The instance is stopping; whoever waits should leave."""
