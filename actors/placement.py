"""Where an instance's actors run: one placement-group bundle a DP group, one a MoE device (3.1)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Final

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from asap_ray.config import ServeConfig
from asap_ray.errors import ConfigError

RESOURCE: Final = "NPU"
"""Ray's own name for Ascend devices; on a CPU a logical resource given to `ray start --resources`."""

NAMESPACE: Final = "serve"
"""Ray Serve's own namespace, so that whoever manages the application finds the actors."""


def group_names(config: ServeConfig) -> list[str]:
    """Names of the attention groups' actors, in the order of i."""
    return [f"{config.name}:attention:{i}" for i in range(config.parallel.dp_groups)]


def device_names(config: ServeConfig) -> list[str]:
    """Names of the MoE devices' actors, in the order of e."""
    return [f"{config.name}:moe:{e}" for e in range(config.parallel.moe_devices)]


def running_names(name: str) -> list[str]:
    """Actors of the instance `name` that the cluster knows, whatever degrees they were started with."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    mine = [each["name"] for each in listed if each["namespace"] == NAMESPACE]
    return [actor for actor in mine if actor.rpartition(":")[0] in (f"{name}:attention", f"{name}:moe")]


def running_in_app(app: str) -> list[str]:
    """Actors of all instances of an application that the cluster knows."""
    pattern = re.compile(rf"{re.escape(app)}(:\d+)?:(attention|moe):\d+")
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in listed if each["namespace"] == NAMESPACE and pattern.fullmatch(each["name"])]


def reserve(config: ServeConfig) -> PlacementGroup:
    """Ask for the bundles of an instance, groups first; they outlive whoever asked. Does not wait for them.

    Raises:
        ConfigError: the cluster has too few NPUs.
    """
    parallel, total = config.parallel, _count(ray.cluster_resources)
    if total < parallel.num_devices:
        raise ConfigError(
            f"the instance needs {parallel.num_devices} {RESOURCE} "
            f"({parallel.dp_groups} groups of {parallel.tp}, {parallel.moe_devices} MoE devices), "
            f"the cluster has {total:g}; without Ascend devices start Ray with "
            f"--resources='{{\"{RESOURCE}\": {parallel.num_devices}}}'"
        )
    # Shared memory ends with the node, and so does the memory that dies open of each other.
    strategy = "STRICT_PACK" if config.fabric == "shm" or config.device == "npu" else "PACK"
    bundles = [{RESOURCE: parallel.tp}] * parallel.dp_groups + [{RESOURCE: 1}] * parallel.moe_devices
    group: PlacementGroup = placement_group(bundles, strategy=strategy, name=config.name, lifetime="detached")
    return group


def settled(config: ServeConfig) -> ServeConfig:
    """In a device of an instance: its configuration, with a fabric that is `shm` if all of it is on one node."""
    placement = get_current_placement_group()
    if config.fabric != "auto" or placement is None:
        return config
    nodes = set(placement_group_table(placement)["bundles_to_node_id"].values())
    return config if len(nodes) > 1 else dataclasses.replace(config, fabric="shm")


def wait_for_places(group: PlacementGroup, num_devices: int, timeout_s: float) -> None:
    """Wait until the bundles are this instance's.

    Raises:
        ConfigError: they were not free within `timeout_s`; they are asked for no longer.
    """
    try:
        ray.get(group.ready(), timeout=timeout_s)
    except GetTimeoutError:
        remove_placement_group(group)
        free, total = _count(ray.available_resources), _count(ray.cluster_resources)
        raise ConfigError(
            f"{num_devices} {RESOURCE} were not free within {timeout_s:.1f} s: "
            f"{free:g} of the cluster's {total:g} are free"
        ) from None


def _count(resources: Callable[[], dict[str, float]]) -> float:
    return resources().get(RESOURCE, 0)


def bundle(group: PlacementGroup, index: int) -> PlacementGroupSchedulingStrategy:
    """The scheduling strategy of one bundle: DP group i is bundle i, MoE device e is bundle D + e."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
