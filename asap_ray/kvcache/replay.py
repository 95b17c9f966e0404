"""What a prefix cache saves of given prompts, and where a placement puts them: one after another on each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asap_ray.kvcache.placement import Cost, Offer
from asap_ray.kvcache.prefix import PrefixCache

Choose = Callable[[int, Sequence[Offer], Cost], Offer]
"""(prompt tokens, an offer of each group, cost) -> the one taken; `placement.place` is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What matters of a prompt."""

    arrival_s: float
    num_tokens: int
    keys: tuple[bytes, ...]  # of its full blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of one."""

    group: int
    num_tokens: int
    cached_tokens: int
    ttft_s: float
    is_too_long: bool  # for the cache of a group: computed whole and not kept


def replay(prompts: Iterable[Prompt], caches: Sequence[PrefixCache], cost: Cost, choose: Choose) -> list[Served]:
    """Place prompts on the groups of `caches` as they come, in order of arrival.

    A group begins with a prompt when the one before it is done, and holds no blocks in between: no lease, no decode.
    It offers what will be cached by then.
    """
    free_at = [0.0] * len(caches)
    served = []
    for number, prompt in enumerate(prompts):
        offers = [
            Offer(
                group=group,
                cached_tokens=cache.match(prompt.keys, prompt.num_tokens),
                queue_s=max(0.0, free_at[group] - prompt.arrival_s),
            )
            for group, cache in enumerate(caches)
        ]
        chosen = choose(prompt.num_tokens, offers, cost)
        cached_tokens = _keep(str(number), prompt, caches[chosen.group])
        past = cached_tokens or 0
        ttft_s = chosen.queue_s + cost(past, prompt.num_tokens - past)
        free_at[chosen.group] = prompt.arrival_s + ttft_s
        served.append(
            Served(
                group=chosen.group,
                num_tokens=prompt.num_tokens,
                cached_tokens=past,
                ttft_s=ttft_s,
                is_too_long=cached_tokens is None,
            )
        )
    return served


def _keep(request_id: str, prompt: Prompt, cache: PrefixCache) -> int | None:
    """Run a prompt through the cache of a group; how much of it was there, None if it does not fit."""
    reservation = cache.reserve(request_id, prompt.keys, prompt.num_tokens, prompt.num_tokens)
    if reservation is None:
        return None
    cache.publish(request_id, prompt.num_tokens)
    cache.release(request_id)
    return reservation.cached_tokens
