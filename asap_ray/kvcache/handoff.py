"""Leases on what a decode instance has yet to pull: a request's blocks stay until they are pulled or nobody cares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from asap_ray.errors import ConfigError
from asap_ray.kvcache.prefix import PrefixCache

LEASE_S: Final = 60.0
"""How long blocks outlive the last sign of life of whoever is to pull them, unless a lease says otherwise."""


@dataclass(slots=True)
class LeaseCounts:
    """Leases since the start; those that are in none of the last four are still open."""

    granted: int = 0
    pulled: int = 0
    aborted: int = 0
    expired: int = 0
    lost: int = 0  # with the cache of their group


@dataclass(slots=True)
class _Lease:
    """One request's."""

    ends_at: float
    pulled_by: set[str] = field(default_factory=set)  # consumers that have all they need


class Leases:
    """The requests of one attention group that have their first token, and whose blocks a decode instance will pull.

    `now` is an argument and never goes back. An id without a lease is no error anywhere: it may have ended a moment
    ago, and a peer cannot know.
    """

    def __init__(self, cache: PrefixCache, lease_s: float = LEASE_S, counts: LeaseCounts | None = None) -> None:
        """Leases of `lease_s` seconds on requests that hold blocks in `cache`; counted in `counts` with others.

        Raises:
            ConfigError: `lease_s` is not positive.
        """
        if not lease_s > 0:
            raise ConfigError(f"lease_s={lease_s} must be positive")
        self._cache = cache
        self._lease_s = lease_s
        self._open: OrderedDict[str, _Lease] = OrderedDict()  # all last as long, so the first ends first
        self.counts = counts or LeaseCounts()

    @property
    def num_open(self) -> int:
        """Requests whose blocks wait to be pulled."""
        return len(self._open)

    def grant(self, request_id: str, now: float) -> None:
        """Keep the blocks that a request holds beyond its end; instead of `PrefixCache.release`."""
        assert request_id not in self._open, f"request {request_id!r} has a lease already"
        self._open[request_id] = _Lease(now + self._lease_s)
        self.counts.granted += 1

    def heartbeat(self, request_id: str, now: float) -> bool:
        """The decode side still wants the blocks: the lease begins anew; whether there was one."""
        if (lease := self._open.get(request_id)) is None:
            return False
        lease.ends_at = now + self._lease_s
        self._open.move_to_end(request_id)
        return True

    def pulled(self, request_id: str, consumer: str = "", num_consumers: int = 1) -> bool:
        """One of `num_consumers` ranks of the decode side has all it needs; whether that was the last one.

        `consumer` names it: a rank may say so more than once, and is counted once. After the last, the blocks are let
        go: what a prefix cache wants of them becomes idle, the rest is free.
        """
        if (lease := self._open.get(request_id)) is None:
            return False
        lease.pulled_by.add(consumer)
        if len(lease.pulled_by) < num_consumers:
            return False
        self._end(request_id)
        self.counts.pulled += 1
        return True

    def abort(self, request_id: str) -> bool:
        """The decode side will not pull: let go of the blocks; whether there was a lease."""
        if request_id not in self._open:
            return False
        self._end(request_id)
        self.counts.aborted += 1
        return True

    def lose(self) -> None:
        """The cache is gone, and with it the blocks of every lease."""
        self.counts.lost += len(self._open)
        self._open.clear()

    def expire(self, now: float) -> list[str]:
        """Let go of the blocks of every lease that has ended by `now`; the requests they were for."""
        ended = list(self._ended(now))
        for request_id in ended:
            self._end(request_id)
        self.counts.expired += len(ended)
        return ended

    def wake_at(self) -> float | None:
        """When the next lease ends if nobody asks for it; None if none is open."""
        return next((lease.ends_at for lease in self._open.values()), None)

    def _ended(self, now: float) -> Iterator[str]:
        for request_id, lease in self._open.items():
            if lease.ends_at > now:
                return
            yield request_id

    def _end(self, request_id: str) -> None:
        del self._open[request_id]
        self._cache.release(request_id)
