"""Counts of what a MoE device receives."""

# Shapes: E experts of the device, L layers.

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Received:
    """Totals since the start. The receive stream alone writes, anybody may read."""

    def __init__(self, num_experts: int, num_layers: int) -> None:
        self.num_tokens = 0  # once a layer, however many of the experts they chose
        self.num_dropped = 0  # messages whose header contradicts the layout
        self.num_expert_calls = 0  # experts that had rows, summed over items
        self.rows_E = np.zeros(num_experts, dtype=np.int64)
        self.steps_L = np.zeros(num_layers, dtype=np.int64)  # items by the step from the layer before, modulo L
        self._last_layer = -1

    def add(self, layer: int, num_tokens: int, num_rows_E: NDArray[np.int32]) -> None:
        """Count one item; `num_rows_E` are its rows by expert."""
        self.num_tokens += num_tokens
        self.num_expert_calls += int(np.count_nonzero(num_rows_E))
        self.rows_E += num_rows_E
        self.steps_L[(layer - self._last_layer) % len(self.steps_L)] += 1
        self._last_layer = layer
