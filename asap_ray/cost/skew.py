"""How unevenly tokens choose experts, and so how unevenly MoE devices are loaded.

The paper assumes perfect balance (2.2.2). Experts lie on devices in the order of their ids, as
`Instance.experts_of` places them.
"""

# Shapes: L layers, X experts of the model, E MoE devices.

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from asap_ray.cost.shapes import Shape
from asap_ray.errors import ConfigError

Load = Callable[[int, int], float]
"""(device, layer) -> its rows of a batch over those of a balanced device."""

_Float = npt.NDArray[np.float64]


def balanced(moe_device: int, layer: int) -> float:  # noqa: ARG001
    """Every device gets its share of every batch."""
    return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """The chance that a token chooses each expert of each layer; rows sum to top_k, none is above 1."""

    name: str
    chosen_LX: _Float | None = None  # None: all alike

    def load(self, moe_devices: int) -> Load:
        """The load of each of so many devices."""
        if self.chosen_LX is None:
            return balanced
        num_experts = self.chosen_LX.shape[1]
        starts = [e * num_experts // moe_devices for e in range(moe_devices)]
        rows_LE = np.add.reduceat(self.chosen_LX, starts, axis=1)
        load_EL = (rows_LE * moe_devices / rows_LE.sum(axis=1, keepdims=True)).T.tolist()
        return lambda moe_device, layer: load_EL[moe_device][layer]

    def slowest(self, moe_devices: int) -> float:
        """Load of the busiest device of each layer, mean over layers: what bounds a run with a barrier a layer."""
        if self.chosen_LX is None:
            return 1.0
        load, layers = self.load(moe_devices), range(len(self.chosen_LX))
        return sum(max(load(e, layer) for e in range(moe_devices)) for layer in layers) / len(layers)

    def busiest(self, moe_devices: int) -> float:
        """Load of the device with the most rows over all layers: what bounds a run whose devices never wait."""
        if self.chosen_LX is None:
            return 1.0
        load, layers = self.load(moe_devices), range(len(self.chosen_LX))
        return max(sum(load(e, layer) for layer in layers) for e in range(moe_devices)) / len(layers)


UNIFORM: Final = Skew("uniform")


def zipf(shape: Shape, exponent: float, seed: int) -> Skew:
    """Popularity falls as rank ** -exponent; which expert has which rank is drawn anew for each layer.

    Raises:
        ConfigError: the exponent is not in 0..4.
    """
    if not 0 <= exponent <= 4:
        raise ConfigError(f"zipf exponent {exponent} must lie in 0..4")
    rng = np.random.default_rng(seed)
    popularity_X = np.arange(1, shape.num_experts + 1, dtype=np.float64) ** -exponent
    popularity_LX = np.stack([rng.permutation(popularity_X) for _ in range(shape.num_layers)])
    return Skew(f"zipf:{exponent:g}", _chances(popularity_LX, shape.top_k))


def measured(shape: Shape, path: Path) -> Skew:
    """Counts of rows by layer and expert, a JSON list of lists.

    Raises:
        ConfigError: not such a file, or not of this model's layers and experts.
    """
    try:
        counts_LX = np.asarray(json.loads(path.read_text()), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise ConfigError(f"expert counts {str(path)!r} cannot be read: {error}") from None
    wanted = (shape.num_layers, shape.num_experts)
    if counts_LX.shape != wanted:
        raise ConfigError(f"expert counts {str(path)!r} have shape {counts_LX.shape}; {shape.name} needs {wanted}")
    if counts_LX.min() < 0 or not np.isfinite(counts_LX).all() or (np.count_nonzero(counts_LX, 1) < shape.top_k).any():
        raise ConfigError(
            f"expert counts {str(path)!r} must be >= 0, with at least {shape.top_k} above 0 in each layer"
        )
    return Skew(f"counts:{path.name}", _chances(counts_LX, shape.top_k))


def skew_of(text: str, shape: Shape, seed: int = 0) -> Skew:
    """`uniform`, `zipf:EXPONENT` or `counts:FILE`.

    Raises:
        ConfigError: none of these.
    """
    kind, _, value = text.partition(":")
    if kind == "uniform" and not value:
        return UNIFORM
    if kind == "counts" and value:
        return measured(shape, Path(value))
    try:
        exponent = float(value) if kind == "zipf" else None
    except ValueError:
        exponent = None
    if exponent is None:
        raise ConfigError(f"skew {text!r} must be uniform, zipf:EXPONENT or counts:FILE")
    return zipf(shape, exponent, seed)


def _chances(popularity_LX: _Float, top_k: int) -> _Float:
    """Chances in proportion to popularity that sum to top_k; what would exceed 1 goes to the others.

    A token chooses an expert at most once, so the most popular one gets at most every token.
    """
    chances_LX: _Float = np.zeros_like(popularity_LX)
    for chance_X, popularity_X in zip(chances_LX, popularity_LX, strict=True):
        is_full_X = np.zeros(len(popularity_X), dtype=bool)
        while True:
            left = top_k - is_full_X.sum()
            scaled_X = popularity_X * (left / max(popularity_X[~is_full_X].sum(), 1e-300))
            chance_X[:] = np.where(is_full_X, 1.0, scaled_X)
            over_X = chance_X > 1.0
            if not over_X.any():
                break
            is_full_X |= over_X
    return chances_LX
