"""How busy a device has been: the numerator of its duty cycle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Duty:
    """Totals since the start of one device; written by its compute stream alone, read by anyone."""

    compute_s: float = 0.0
    num_items: int = 0  # one layer of one batch each
    num_rows: int = 0  # attention: tokens times layers; MoE: (token, expert) pairs

    def add(self, seconds: float, num_rows: int) -> None:
        """Count one item."""
        self.compute_s += seconds
        self.num_items += 1
        self.num_rows += num_rows
