"""What the phases of all systems say side by side: medians, spreads, and whether the aims hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from peers.load import Measured
from peers.systems import DP_EP, OURS, SINGLE, SINGLE_32K

BURST: Final = "burst, tokens/s"
FAILED: Final = "requests that failed"
BESIDE_RATIO: Final = "short beside long / short alone"
PROBES: Final = {
    "short_alone": "short alone, ms",
    "long_alone": "long alone, ms",
    "short_beside_long": "short beside long, ms",
}

DP_EP_AIM: Final = 1.6  # times its capacity
BESIDE_AIM: Final = 2.5  # times the short prompt alone

Figures = dict[str, float]
"""One repetition of one system: a figure under each label, NaN where a request was not answered."""

NAN: Final = float("nan")

Best = Callable[[Sequence[float]], float]


def figures(phases: Sequence[Measured]) -> Figures:
    """The figures of one repetition, in the order of the table. Who drops requests is not fast: no figure, no aim."""
    found: Figures = {FAILED: float(sum(each.num_failed for each in phases))}
    for each in phases:
        whole = not each.num_failed
        if each.phase == "burst":
            found[BURST] = each.tokens_per_s if whole and each.tokens_per_s else NAN
        elif each.phase == "open":
            found[f"{each.load:g} requests/s, TTFT mean, ms"] = _ms(each.ttft_mean_s if whole else None)
            found[f"{each.load:g} requests/s, TTFT p50, ms"] = _ms(each.ttft_p50_s if whole else None)
            found[f"{each.load:g} requests/s, TTFT p99, ms"] = _ms(each.ttft_p99_s if whole else None)
        else:
            found[PROBES[each.phase]] = _ms(each.ttft_p50_s if whole else None)
    found[BESIDE_RATIO] = found[PROBES["short_beside_long"]] / found[PROBES["short_alone"]]
    return found


def table(results: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Lines of Markdown: a column for each system, median and range over repetitions."""
    yield "| | " + " | ".join(results) + " |"
    yield "|---|" + "---:|" * len(results)
    for label in results[OURS][0]:
        cells = [spread([each[label] for each in repetitions]) for repetitions in results.values()]
        yield f"| {label} | " + " | ".join(cells) + " |"


def aims(results: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """One line an aim: ours over theirs of the same round, and whether the median holds."""
    single = (SINGLE, SINGLE_32K)
    yield _aim("our requests that failed", [each[FAILED] for each in results[OURS]], at_most=0.0)
    yield _aim("capacity over the better single process", _over(results, BURST, single, max), at_least=1.0)
    yield _aim("capacity over DP2+EP", _over(results, BURST, (DP_EP,), max), at_least=DP_EP_AIM)
    for label in results[OURS][0]:
        if label.endswith(("TTFT mean, ms", "TTFT p99, ms")):
            name = label.removesuffix(", ms")
            yield _aim(f"{name} over the better single process", _over(results, label, single, min), at_most=1.0)
            yield _aim(f"{name} over DP2+EP", _over(results, label, (DP_EP,), min), at_most=1.0)
    yield _aim(BESIDE_RATIO, [each[BESIDE_RATIO] for each in results[OURS]], at_most=BESIDE_AIM)


def spread(values: Sequence[float]) -> str:
    """Median, and the range where there is one."""
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{_number(min(values))} .. {_number(max(values))}]"


def _over(results: Mapping[str, Sequence[Figures]], label: str, peers: Sequence[str], best: Best) -> list[float]:
    """Our figure over the best of the peers', round by round."""
    rounds = zip(*(results[name] for name in (OURS, *peers)), strict=True)
    return [own[label] / best([each[label] for each in others]) for own, *others in rounds]


def _aim(name: str, ratios: Sequence[float], at_least: float = 0.0, at_most: float = float("inf")) -> str:
    holds = not any(map(math.isnan, ratios)) and at_least <= statistics.median(ratios) <= at_most
    bound = f"at least {at_least:g}" if at_least else f"at most {at_most:g}"
    return f"{'holds ' if holds else 'missed'}  {name}: {spread(ratios)}, aim {bound}"


def _ms(seconds: float | None) -> float:
    return NAN if seconds is None else 1e3 * seconds


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
