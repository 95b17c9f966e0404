"""A mean and how far it may be off, from a few repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

Side = Literal["", "at least", "at most"]

T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of Student's t distribution at 97.5 % for 1 to 30 degrees of freedom; the last serves above."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % confidence interval: mean +- half_width; None from a single value."""

    mean: float
    half_width: float | None
    side: Side = ""  # the number itself is only known to be so much at least, or at most

    def text(self, digits: int = 2) -> str:
        """For a table."""
        mean = f"{self.mean:.{digits}f}" if self.half_width is None else self._both(digits)
        return f"{self.side} {mean}" if self.side else mean

    def _both(self, digits: int) -> str:
        return f"{self.mean:.{digits}f}±{self.half_width:.{digits}f}"

    def times(self, factor: float) -> Interval:
        """In another unit."""
        half_width = None if self.half_width is None else factor * self.half_width
        return replace(self, mean=factor * self.mean, half_width=half_width)

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside; never of a single value."""
        return self.half_width is not None and abs(self.mean - value) > self.half_width


def interval_of(values: Sequence[float]) -> Interval:
    """Of the mean of at least one value, by the t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    quantile = T_975[min(len(values) - 1, len(T_975)) - 1]
    return Interval(mean, quantile * statistics.stdev(values) / len(values) ** 0.5)
