"""The policies of an asynchronous instance by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asap_ray.errors import ConfigError
from asap_ray.scheduler.paper import Paper
from asap_ray.scheduler.policy import Policy
from asap_ray.scheduler.shares import Cost
from asap_ray.scheduler.turns import Turns
from asap_ray.spec import PrefillSpec

POLICIES: Final[dict[str, Callable[[PrefillSpec, Cost], Policy]]] = {"asap": Turns, "paper": Paper}


def policy_of(name: str, prefill: PrefillSpec, cost: Cost) -> Policy:
    """A policy by its name, empty.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name](prefill, cost)
