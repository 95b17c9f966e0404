"""What is done to a trace before it is replayed, in one fixed order, and said in words for the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from asap_ray.errors import ConfigError
from asap_ray.workload.arrivals import poisson_arrivals
from asap_ray.workload.trace import (
    TraceRequest,
    cap_lengths,
    dequantise,
    drop_longer,
    scale_lengths,
    scale_rate,
    window,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Spread clumped times, cut a window, change the rate, change the lengths: in this order."""

    dequantise_s: float | None = None
    start_s: float = 0.0
    duration_s: float = float("inf")
    rate_factor: float = 1.0
    poisson_rate: float | None = None  # requests a second, instead of the trace's own times
    length_factor: float = 1.0
    cap_tokens: int | None = None
    drop_tokens: int | None = None
    seed: int = 0

    def apply(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The requests to send.

        Raises:
            ConfigError: a number makes no sense, or nothing is left.
        """
        shaped = list(requests)
        if self.dequantise_s is not None:
            shaped = dequantise(shaped, self.dequantise_s, self.seed)
        shaped = window(shaped, self.start_s, self.duration_s)
        shaped = scale_rate(shaped, self.rate_factor)
        shaped = scale_lengths(shaped, self.length_factor)
        if self.drop_tokens is not None:
            shaped = drop_longer(shaped, self.drop_tokens)
        if self.cap_tokens is not None:
            shaped = cap_lengths(shaped, self.cap_tokens)
        if not shaped:
            raise ConfigError(f"no request of the trace is left: {self.text()}")
        return self._at_poisson_times(shaped) if self.poisson_rate is not None else shaped

    def text(self) -> str:
        """What differs from the trace as it was recorded."""
        said = [
            f"times spread over {self.dequantise_s:g} s" if self.dequantise_s is not None else "",
            f"from second {self.start_s:g}" if self.start_s else "",
            f"{self.duration_s:g} s of it" if self.duration_s < float("inf") else "",
            f"{self.rate_factor:g} times its rate" if self.rate_factor != 1 else "",
            f"Poisson arrivals at {self.poisson_rate:g} a second" if self.poisson_rate is not None else "",
            f"{self.length_factor:g} times its lengths" if self.length_factor != 1 else "",
            f"without prompts above {self.drop_tokens} tokens" if self.drop_tokens is not None else "",
            f"prompts cut to {self.cap_tokens} tokens" if self.cap_tokens is not None else "",
            f"seed {self.seed}",
        ]
        return ", ".join(filter(None, said))

    def _at_poisson_times(self, requests: list[TraceRequest]) -> list[TraceRequest]:
        """The same prompts in the same order, round and round, at drawn times of as long a stretch."""
        duration_s = self.duration_s / self.rate_factor
        if duration_s == float("inf"):
            duration_s = requests[-1].timestamp_s + 1.0
        times_s = poisson_arrivals(self.poisson_rate or 0.0, duration_s, self.seed)
        return [
            dataclasses.replace(requests[index % len(requests)], timestamp_s=time_s)
            for index, time_s in enumerate(times_s)
        ]
