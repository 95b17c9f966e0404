"""How long prompts are: stand-ins for the paper's private distribution.

The paper gives a mean of 5k tokens, a least length of 31 and a tail to 100k (2.3), and leaves out
prompts above 32k (5.1). A lognormal cut to [31, 100000] has two parameters. Its median at the geometric
middle of the two ends and the published mean fix both: preset A. The shape itself is our assumption, so B, C and M
have the same mean and ends, and lighter, heavier and mixed shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from asap_ray.errors import ConfigError
from asap_ray.workload.arrivals import poisson_arrivals
from asap_ray.workload.trace import TraceRequest

MIN_TOKENS: Final = 31
MAX_TOKENS: Final = 32 * 1024
MIXTURE_STREAM: Final = 4
"""Second word of the seed that says which part of a mixture each prompt is of."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A mixture of lognormals, cut to [31, 32k]: (weight, mu, sigma) of each part."""

    name: str
    parts: tuple[tuple[float, float, float], ...]

    def draw(self, num_requests: int, seed: int) -> list[int]:
        """Prompt lengths in tokens."""
        rng, mixture = np.random.default_rng(seed), np.random.default_rng([seed, MIXTURE_STREAM])
        weights, mus, sigmas = np.array(self.parts).T
        kept = np.empty(0)
        while len(kept) < num_requests:
            part = mixture.choice(len(weights), size=4 * num_requests, p=weights)
            drawn = np.exp(mus[part] + sigmas[part] * rng.standard_normal(4 * num_requests))
            kept = np.concatenate([kept, drawn[(drawn >= MIN_TOKENS) & (drawn <= MAX_TOKENS)]])
        return [int(length) for length in np.rint(kept[:num_requests])]


PRESETS: Final = {
    each.name: each
    for each in (
        Lengths("A", ((1.0, 7.473456, 1.539238),)),  # mu = ln sqrt(31 * 100000); mean after the cut 3814
        Lengths("B", ((1.0, 7.827119, 1.2),)),  # lighter tail, mean 4330
        Lengths("C", ((1.0, 6.962675, 2.0),)),  # heavier tail, mean 3304
        Lengths("M", ((0.85, 7.313610, 1.1), (0.15, 9.510834, 0.8))),  # a bulk and long documents, mean 4055
    )
}


def lengths_of(name: str) -> Lengths:
    """A preset by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown length preset {name!r}; presets are {', '.join(PRESETS)}")
    return PRESETS[name]


def paper_lengths(num_requests: int, seed: int) -> list[int]:
    """Prompt lengths of preset A in tokens, at most 32k; their mean is 3814."""
    return PRESETS["A"].draw(num_requests, seed)


def paper_trace(rate: float, duration_s: float, seed: int, preset: str = "A") -> list[TraceRequest]:
    """Requests as in 5.1: Poisson arrivals, lengths as above, one output token, no shared prefixes."""
    arrivals_s = poisson_arrivals(rate, duration_s, seed)
    lengths = lengths_of(preset).draw(len(arrivals_s), seed)
    return [
        TraceRequest(timestamp_s=arrival_s, input_length=length, output_length=1)
        for arrival_s, length in zip(arrivals_s, lengths, strict=True)
    ]
