"""When requests come: a Poisson process (5.1)."""

from __future__ import annotations

from typing import Final

import numpy as np

from asap_ray.workload.trace import check_positive

ARRIVAL_STREAM: Final = 1
"""Second word of the seed, so that times and lengths of one seed are independent."""


def poisson_arrivals(rate: float, duration_s: float, seed: int) -> list[float]:
    """Sorted times in [0, duration_s) of a Poisson process of `rate` requests a second; their number is drawn too."""
    check_positive("rate", rate)
    check_positive("duration_s", duration_s)
    rng = np.random.default_rng([seed, ARRIVAL_STREAM])
    num_requests = rng.poisson(rate * duration_s)
    return [float(time_s) for time_s in np.sort(rng.random(num_requests)) * duration_s]
