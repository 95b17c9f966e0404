"""Which experts are on which MoE device, hot ones on several (ADR 0010)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asap_ray.errors import ConfigError
from asap_ray.strict import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The same in all layers: a device holds its experts of all of them in one table (3.4.2).

    Places are numbered over all devices; `split` says how many each has.
    """

    experts: tuple[tuple[int, ...], ...]  # of each device, in the order of its places

    def __post_init__(self) -> None:
        if not self.experts:
            raise ConfigError("placement: no MoE device")
        for e, experts in enumerate(self.experts):
            if len(set(experts)) < len(experts):
                twice = next(x for x in experts if experts.count(x) > 1)
                raise ConfigError(f"placement: MoE device {e} has expert {twice} twice; once is enough")
        sizes = [len(experts) for experts in self.experts]
        if sizes != [len(places) for places in split(self.num_places, len(sizes))]:
            raise ConfigError(
                f"placement: {sizes} places on the devices; {self.num_places} are divided as "
                f"{[len(places) for places in split(self.num_places, len(sizes))]}"
            )

    @property
    def num_places(self) -> int:
        """Of all devices."""
        return sum(map(len, self.experts))

    @property
    def expert_of_place(self) -> tuple[int, ...]:
        """By place."""
        return tuple(expert for experts in self.experts for expert in experts)

    def loads(self, rows_X: Sequence[float]) -> list[float]:
        """Rows of each device over the mean, were those of an expert divided evenly among its places."""
        num_places = Counter(self.expert_of_place)
        rows_E = [sum(rows_X[x] / num_places[x] for x in experts) for experts in self.experts]
        mean = sum(rows_E) / len(rows_E)
        return [rows / mean if mean else 1.0 for rows in rows_E]

    def check_devices(self, moe_devices: int) -> None:
        """Raise ConfigError unless it is one of so many MoE devices."""
        if len(self.experts) != moe_devices:
            raise ConfigError(f"placement is of {len(self.experts)} MoE devices; the instance has {moe_devices}")

    def check(self, num_experts: int, moe_devices: int) -> None:
        """Whether it is one of so many experts on so many devices.

        Raises:
            ConfigError: it is not; names what is missing or too much.
        """
        self.check_devices(moe_devices)
        known = set(range(num_experts))
        placed = set(self.expert_of_place)
        if wrong := placed - known:
            raise ConfigError(f"placement: expert {min(wrong)} is not in 0..{num_experts - 1}")
        if missing := known - placed:
            raise ConfigError(f"placement: expert {min(missing)} has no place, of {len(missing)} that have none")


def read_placement(file: Path) -> Placement:
    """What `asap-ray placement` has written.

    Raises:
        ConfigError: the file cannot be read, or holds no placement.
    """
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"placement {str(file)!r} cannot be read: {error}") from None
    return build(Placement, values, f"placement {str(file)!r}")


def split(num_places: int, moe_devices: int) -> Sequence[range]:
    """The places of each device: consecutive, sizes differing by at most one."""
    return [range(e * num_places // moe_devices, (e + 1) * num_places // moe_devices) for e in range(moe_devices)]


def contiguous(num_experts: int, moe_devices: int) -> Placement:
    """Every expert in one place, in the order of their ids."""
    return Placement(experts=tuple(map(tuple, split(num_experts, moe_devices))))
