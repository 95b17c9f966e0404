"""Sections that leave the paper's case: other prompts, devices, links, models and experts; and where async loses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from asap_ray.evaluation.bound import Bound
from asap_ray.evaluation.points import Case, Point
from asap_ray.evaluation.report_plots import beside
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.section import SIMULATED, Cell, Effort, Section, case_words, columns
from asap_ray.evaluation.sensitivity_cases import (
    RECORDINGS,
    all_cases,
    device_cases,
    link_cases,
    model_cases,
    skew_cases,
    trace_cases,
)
from asap_ray.evaluation.slo import SloSearch, criterion_of
from asap_ray.evaluation.sweep import case_bound, first_guess, limit_rps

ASYNC: Final = "asap"
SYNC: Final = "strong"
SEED: Final = 0
LOW_LOAD: Final = 0.1
"""Of the bound: hardly anybody waits."""

PAYS: Final = 1.05
"""Below this ratio async does not pay: a twentieth is less than the model is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The asynchronous and the best synchronous system in one case."""

    case: Case
    bound: Bound
    async_rps: float  # within the objective, by mean
    sync_rps: float
    async_low_s: float  # mean TTFT at low load
    sync_low_s: float
    is_open: bool  # both carry the highest rate that was looked at: which one more is not known

    @property
    def gain(self) -> float:
        """Of rate within the objective; infinite where the synchronous system has none."""
        return self.async_rps / self.sync_rps if self.sync_rps else float("inf") if self.async_rps else 1.0

    @property
    def low_gain(self) -> float:
        """Of TTFT at low load: above 1 the asynchronous system answers sooner."""
        return self.sync_low_s / self.async_low_s


def compare(case: Case, effort: Effort) -> Search[Comparison]:
    """Both systems, the same requests."""
    bound = case_bound(case)
    limit = limit_rps(effort.sweep.limit_of_bound, bound)
    rates, low_s = [], []
    for system in (ASYNC, SYNC):
        search = SloSearch(
            system=system,
            case=case,
            duration_s=effort.sensitivity_s,
            slo_s=effort.sweep.slo_s,
            resolution_rps=effort.resolution * bound.rps,
            limit_rps=limit,
        )
        found = yield from search.over_seeds((SEED,), [criterion_of("mean")], first_guess(system, bound))
        rates.append(found["mean"][0])
        duration_s = max(effort.sensitivity_s, 20 / (LOW_LOAD * bound.rps))
        low = yield Point(system=system, case=case, rps=LOW_LOAD * bound.rps, duration_s=duration_s, seed=SEED)
        low_s.append(low.ttft_mean_s)
    return Comparison(
        case=case,
        bound=bound,
        async_rps=rates[0],
        sync_rps=rates[1],
        async_low_s=low_s[0],
        sync_low_s=low_s[1],
        is_open=limit is not None and min(rates) > limit - effort.resolution * bound.rps,
    )


def _compared(cases: Iterable[Case], effort: Effort) -> Search[list[Comparison]]:
    found = []
    for case in cases:
        found.append((yield from compare(case, effort)))
    return found


COLUMNS: Final = columns(
    "case",
    ("resource bound, RPS", SIMULATED),
    (f"{ASYNC}, RPS", SIMULATED),
    (f"{SYNC}, RPS", SIMULATED),
    ("gain", SIMULATED),
    (f"{ASYNC} TTFT at low load, s", SIMULATED),
    (f"{SYNC} TTFT at low load, s", SIMULATED),
)


def _row(words: str, each: Comparison) -> tuple[Cell, ...]:
    return (words, each.bound.rps, each.async_rps, each.sync_rps, each.gain, each.async_low_s, each.sync_low_s)


def _section(name: str, title: str, text: str, labels: list[str], found: list[Comparison], effort: Effort) -> Section:
    how = (
        f" Rates are the highest with mean TTFT within {effort.sweep.slo_s:g} s in runs of {effort.sensitivity_s:g} s, "
        f"seed {SEED}, on a grid of {100 * effort.resolution:g} % of the bound; shorter runs carry more, and may carry "
        "more than the bound for a while. Low load is "
        f"{100 * LOW_LOAD:g} % of the bound."
    )
    return Section(
        name=name,
        title=title,
        text=text + how,
        columns=COLUMNS,
        rows=[_row(label, each) for label, each in zip(labels, found, strict=True)],
        figure=beside(
            labels,
            {ASYNC: [each.async_rps for each in found], SYNC: [each.sync_rps for each in found]},
            "RPS within the objective",
        ),
    )


def traces(effort: Effort) -> Search[Section]:
    """Other prompts."""
    cases = trace_cases(effort)
    found = yield from _compared(cases, effort)
    absent = [name for name in RECORDINGS if not (effort.traces / name).exists()]
    skipped = f" Not found in {effort.traces}, so left out: {', '.join(absent)}." if absent else ""
    text = (
        "Recorded traces keep their own order, lengths up to 32k and bursts; their rate is scaled. Shared prefixes are "
        f"computed anew: there is no prefix cache in this model.{skipped}"
    )
    labels = [case.trace.rpartition("/")[2].removesuffix(".jsonl.gz") for case in cases]
    return _section("traces", "Other prompts", text, labels, found, effort)


def devices(effort: Effort) -> Search[Section]:
    """Other D, T, E."""
    cases = device_cases(effort)
    found = yield from _compared(cases, effort)
    text = "The synchronous system uses the same devices in groups of T."
    labels = [f"D={case.dp} T={case.tp} E={case.ep}" for case in cases]
    return _section("devices", "Other splits of 32 devices", text, labels, found, effort)


def links(effort: Effort) -> Search[Section]:
    """Other interconnects."""
    cases = link_cases(effort)
    found = yield from _compared(cases, effort)
    text = (
        "RDMA: 300 us and 50 GB/s a device, within the paper's hundreds of microseconds (4.4); Ethernet: 1 ms and "
        "12.5 GB/s: assumed. With them a NIC moves the bytes beside the computing."
    )
    return _section("links", "Other interconnects", text, [case.interconnect for case in cases], found, effort)


def models(effort: Effort) -> Search[Section]:
    """Other models."""
    cases = model_cases(effort)
    found = yield from _compared(cases, effort)
    text = "The device's effective rates are those fitted to DeepSeek-V3.2. Batches close at 64 rows an expert."
    return _section("models", "Other models", text, [case.model for case in cases], found, effort)


def skews(effort: Effort) -> Search[Section]:
    """Uneven experts."""
    cases = skew_cases(effort)
    found = yield from _compared(cases, effort)
    text = (
        "The paper assumes that experts are chosen evenly. Zipf with an exponent: popularity falls as rank to its "
        "power, ranks drawn anew for each layer, experts placed by their ids. No expert is replicated."
    )
    return _section("skews", "Uneven experts", text, [case.skew for case in cases], found, effort)


def losses(effort: Effort) -> Search[Section]:
    """Where async disaggregation does not pay."""
    found = yield from _compared(all_cases(effort), effort)
    rows: list[tuple[Cell, ...]] = [
        (*_row(case_words(each.case), each), _verdict(each)) for each in found if _verdict(each)
    ]
    num_open = sum(each.is_open for each in found)
    undecided = (
        f" In {num_open} cases both carry the highest rate looked at: rates say nothing there." if num_open else ""
    )
    return Section(
        name="losses",
        title="Where async disaggregation does not pay",
        text=(
            f"Of the {len(found)} cases above, those in which {ASYNC} gains less than "
            f"{100 * (PAYS - 1):.0f} % over {SYNC}, the best synchronous system, in rate or in TTFT at low load. "
            f"Gain is the ratio of rates.{undecided}"
        ),
        columns=(*COLUMNS, "because of"),
        rows=rows,
    )


def _verdict(each: Comparison) -> str:
    reasons = [
        f"rate, {each.gain:.2f} times" if each.gain < PAYS and not each.is_open else "",
        f"TTFT at low load, {1 / each.low_gain:.2f} times" if each.low_gain < PAYS else "",
    ]
    return "; ".join(filter(None, reasons))
