"""How long prompts are: a stand-in for the paper's private distribution.

The paper gives a mean of 5k tokens, a least length of 31 and a tail to 100k (2.3), and leaves out
prompts above 32k (5.1). A lognormal cut to [31, 100000] has two parameters. Its median at the geometric
middle of the two ends and the published mean fix both; the shape itself is our assumption.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from asap_ray.workload.arrivals import poisson_arrivals
from asap_ray.workload.trace import TraceRequest

MIN_TOKENS: Final = 31
MAX_TOKENS: Final = 32 * 1024
LOG_MEAN: Final = 7.473456  # ln sqrt(31 * 100000)
LOG_SIGMA: Final = 1.539238  # the mean over [31, 100000] is 5000


def paper_lengths(num_requests: int, seed: int) -> list[int]:
    """Prompt lengths in tokens, at most 32k; their mean is 3814."""
    rng = np.random.default_rng(seed)
    kept = np.empty(0)
    while len(kept) < num_requests:
        drawn = np.exp(LOG_MEAN + LOG_SIGMA * rng.standard_normal(4 * num_requests))
        kept = np.concatenate([kept, drawn[(drawn >= MIN_TOKENS) & (drawn <= MAX_TOKENS)]])
    return [int(length) for length in np.rint(kept[:num_requests])]


def paper_trace(rate: float, duration_s: float, seed: int) -> list[TraceRequest]:
    """Requests as in 5.1: Poisson arrivals, lengths as above, one output token, no shared prefixes."""
    arrivals_s = poisson_arrivals(rate, duration_s, seed)
    lengths = paper_lengths(len(arrivals_s), seed)
    return [
        TraceRequest(timestamp_s=arrival_s, input_length=length, output_length=1)
        for arrival_s, length in zip(arrivals_s, lengths, strict=True)
    ]
