"""Which incarnation of each peer a device is joined to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from asap_ray.messages import Registration


class Peers:
    """For any thread: two frontends may tell of the same successor."""

    def __init__(self, peers: Sequence[Registration]) -> None:
        self._epochs = [peer.epoch for peer in peers]
        self._one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def replacing(self, index: int, successor: Registration) -> Iterator[bool]:
        """Whether the successor is new here; it is known once the block has ended well."""
        with self._one_at_a_time:
            yield self._epochs[index] != successor.epoch
            self._epochs[index] = successor.epoch
