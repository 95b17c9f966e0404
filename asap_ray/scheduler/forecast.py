"""When a prompt that comes now would have its first token: the queue at its own rate, and what was missed lately."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from asap_ray.batch import Request
from asap_ray.errors import Overloaded

HALF_LIFE_S: Final = 10.0
"""What was learnt weighs half as much after so long, so that no bad minute is believed for ever."""

MARGIN: Final = 2.0
"""Standard deviations that an expectation keeps from the objective: at it, half of those admitted would be late."""


@dataclass(slots=True)
class _Errors:
    """By how much prompts of a length came later than their backlog said: sums, faded.

    One prompt without error counts among them: the less is known, the less is corrected.
    """

    at_s: float
    weight: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float, now: float) -> None:
        self._fade(now)
        self.weight += 1
        self.seconds += seconds
        self.squares += seconds**2

    def correction_s(self, now: float) -> float:
        """What to add to a backlog, margin included."""
        self._fade(now)
        mean_s = self.seconds / (self.weight + 1)
        return mean_s + MARGIN * math.sqrt(max(0.0, self.squares / (self.weight + 1) - mean_s**2))

    def _fade(self, now: float) -> None:
        kept = 0.5 ** ((now - self.at_s) / HALF_LIFE_S)
        self.weight, self.seconds, self.squares = self.weight * kept, self.seconds * kept, self.squares * kept
        self.at_s = now


class Forecast:
    """Refuses prompts whose first token is expected later than their objective.

    Expected is the backlog before a prompt, itself included, at the rate of the last batches; and on top what prompts
    of about its length (the same power of two) took more or less than that lately, and a margin. Only prompts that
    were admitted teach it, so whoever meets an idle instance has to be admitted.
    """

    def __init__(self, slo_ttft_s: float) -> None:
        """`slo_ttft_s` is positive and counts from a prompt's arrival."""
        self._slo_ttft_s = slo_ttft_s
        self._errors: dict[int, _Errors] = {}  # by bits of the length
        self._due_s: dict[str, float] = {}  # when admitted prompts would be answered by their backlog alone

    def check(self, request: Request, backlog_s: float, now: float) -> None:
        """Refuse a prompt that would be late.

        Raises:
            Overloaded: says by how much; to come back so much later is to be in time, if nobody else comes.
        """
        errors = self._errors.get(request.num_tokens.bit_length())
        expected_s = backlog_s + (errors.correction_s(now) if errors else 0.0) + now - request.arrival_s
        if expected_s > self._slo_ttft_s:
            raise Overloaded(
                f"the first token of a prompt of {request.num_tokens} tokens is expected within {expected_s:.2f} s; "
                f"slo_ttft_s={self._slo_ttft_s:g} refuses what would be late",
                retry_after_s=expected_s - self._slo_ttft_s,
            )

    def admitted(self, request: Request, backlog_s: float, now: float) -> None:
        """A prompt was queued, whatever was expected."""
        self._due_s[request.request_id] = now + backlog_s

    def answered(self, request: Request, now: float) -> None:
        """It has its first token."""
        if (due_s := self._due_s.pop(request.request_id, None)) is not None:
            error_s = min(now - due_s, self._slo_ttft_s)  # late is late: a loss that cost a minute is soon forgotten
            self._errors.setdefault(request.prompt_tokens.bit_length(), _Errors(now)).add(error_s, now)

    def forget(self, request_id: str) -> None:
        """It will have none, or one that teaches nothing."""
        self._due_s.pop(request_id, None)

    def forget_all(self) -> None:
        """Whoever was admitted waits until a group is back: what that takes says nothing of the next prompt."""
        self._due_s.clear()
