"""How fast an instance works off its queue, for the Retry-After of a refused request."""

from __future__ import annotations

from typing import Final

FADE: Final = 0.95
"""Weight of the past at each batch: the last twenty count most."""

UNKNOWN_S: Final = 1.0
"""What a client is told before the first batch is done."""


class DrainRate:
    """Tokens a second while there was work; idle time does not count."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._busy_s = 0.0

    def add(self, num_tokens: int, busy_s: float) -> None:
        """Count a batch that ended `busy_s` after the one before it, or after work began."""
        self._num_tokens = FADE * self._num_tokens + num_tokens
        self._busy_s = FADE * self._busy_s + busy_s

    @property
    def token_s(self) -> float:
        """Seconds of a token while there is work; 0 before the first batch is done."""
        return self._busy_s / self._num_tokens if self._num_tokens else 0.0

    def seconds(self, num_tokens: int) -> float:
        """How long so many tokens take."""
        return num_tokens * self.token_s if self._num_tokens else UNKNOWN_S
