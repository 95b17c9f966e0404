"""On which attention group a prompt runs: the prefix a group has cached, weighed against the work it has to do.

The rule: a prompt runs where it is expected to be done first, `queue_s` of a group plus the cost of what that group
has not cached. So a cached prefix is worth exactly the seconds it saves, and a queue costs the seconds it lasts. A
group with room leaves a prompt that would be done sooner on a busy one, but not for longer than the prefix there
saves: a wrong estimate costs no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cost = Callable[[int, int], float]
"""(past_tokens, num_tokens) -> seconds that a group computes for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one group could do with a prompt."""

    group: int
    cached_tokens: int  # of this prompt, `PrefixCache.match`
    queue_s: float  # for what the group has to do before it, or beside it

    def compute_s(self, num_tokens: int, cost: Cost) -> float:
        """Seconds for what is not cached of a prompt of `num_tokens`."""
        return cost(self.cached_tokens, num_tokens - self.cached_tokens)


def place(num_tokens: int, offers: Sequence[Offer], cost: Cost) -> Offer:
    """The offer that has a prompt of `num_tokens` done first; of equal ones the one with more of it cached, then the
    first. There is at least one.
    """
    return min(offers, key=lambda offer: (offer.queue_s + offer.compute_s(num_tokens, cost), -offer.cached_tokens))


def patience_s(here: Offer, num_tokens: int, offers: Sequence[Offer], cost: Cost) -> float:
    """How long the group of `here`, which has room now, leaves a prompt of `num_tokens` for a better place, in seconds.

    Counted from when a group with room first left it. Not at all if this is the best place, else as long as the prefix
    cached there saves against computing here.

    Args:
        here: one of `offers`.
        num_tokens: length of the prompt.
        offers: of every group that is up.
        cost: see `Cost`.
    """
    best = place(num_tokens, offers, cost)
    return max(0.0, here.compute_s(num_tokens, cost) - best.compute_s(num_tokens, cost))
