"""Sections that leave the paper's case: other prompts, devices, links, models and experts; and where async loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asap_ray.evaluation.comparison import ASYNC, LOW_LOAD, NEITHER, SYNC, UNKNOWN, Comparison, compare_all
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

COLUMNS: Final = columns(
    "case",
    ("resource bound, RPS", SIMULATED),
    (f"{ASYNC}, RPS", SIMULATED),
    (f"{SYNC}, RPS", SIMULATED),
    ("gain", SIMULATED),
    "ahead in rate",
    (f"{ASYNC} TTFT at low load, s", SIMULATED),
    (f"{SYNC} TTFT at low load, s", SIMULATED),
    "ahead at low load",
)


def _row(words: str, each: Comparison) -> tuple[Cell, ...]:
    rate = (each.async_rps, each.sync_rps, each.gain, each.rate_lead)
    return (words, each.bound.rps, *rate, each.async_low_s, each.sync_low_s, each.low_lead)


def _count(leads: Sequence[str]) -> str:
    """How many cases each is ahead in."""
    words = {name: sum(lead.startswith(name) for lead in leads) for name in (ASYNC, SYNC, NEITHER, UNKNOWN)}
    return ", ".join(f"{name} in {number}" for name, number in words.items() if number)


def _tally(found: Sequence[Comparison]) -> str:
    rates, lows = _count([each.rate_lead for each in found]), _count([each.low_lead for each in found])
    num_level = sum(each.rate_margin.mean <= 0 and each.rate_lead != UNKNOWN for each in found)
    return (
        f" Ahead in rate, of {len(found)} cases: {rates}. Ahead in TTFT at low load: {lows}. In rate, "
        f"{SYNC} is at or above {ASYNC} by its mean in {num_level} of them."
    )


def _how(effort: Effort) -> str:
    seeds = effort.sensitivity_seeds
    ahead = (
        f"means ± 95 % over seeds 0-{seeds[-1]}; a system is ahead where the interval of their relative difference, "
        "seed by seed, leaves out 0"
        if len(seeds) > 1
        else "one seed, which puts nobody ahead for certain"
    )
    return (
        f" Rates are the highest with mean TTFT within {effort.sweep.slo_s:g} s in runs of {effort.sensitivity_s:g} s, "
        f"{ahead}; on a grid of {100 * effort.resolution:g} % of the bound. Shorter runs carry more, and may carry "
        f"more than the bound for a while. Low load is {100 * LOW_LOAD:g} % of the bound."
    )


def _section(name: str, title: str, text: str, labels: list[str], found: list[Comparison], effort: Effort) -> Section:
    return Section(
        name=name,
        title=title,
        text=text + _tally(found) + _how(effort),
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
    found = yield from compare_all(cases, effort)
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
    found = yield from compare_all(cases, effort)
    text = "The synchronous system uses the same devices in groups of T."
    labels = [f"D={case.dp} T={case.tp} E={case.ep}" for case in cases]
    return _section("devices", "Other splits of 32 devices", text, labels, found, effort)


def links(effort: Effort) -> Search[Section]:
    """Other interconnects."""
    cases = link_cases(effort)
    found = yield from compare_all(cases, effort)
    text = (
        "RDMA: 300 us and 50 GB/s a device, within the paper's hundreds of microseconds (4.4); Ethernet: 1 ms and "
        "12.5 GB/s: assumed. With them a NIC moves the bytes beside the computing."
    )
    return _section("links", "Other interconnects", text, [case.interconnect for case in cases], found, effort)


def models(effort: Effort) -> Search[Section]:
    """Other models."""
    cases = model_cases(effort)
    found = yield from compare_all(cases, effort)
    text = "The device's effective rates are those fitted to DeepSeek-V3.2. Batches close at 64 rows an expert."
    return _section("models", "Other models", text, [case.model for case in cases], found, effort)


def skews(effort: Effort) -> Search[Section]:
    """Uneven experts."""
    cases = skew_cases(effort)
    found = yield from compare_all(cases, effort)
    text = (
        "The paper assumes that experts are chosen evenly. Zipf with an exponent: popularity falls as rank to its "
        "power, ranks drawn anew for each layer, experts placed by their ids. No expert is replicated. The MoE devices "
        "are one pool that takes as long as its slowest device, layer by layer: so it is in a synchronous step, and "
        f"pessimistic for {ASYNC}, whose devices could even out over layers."
    )
    return _section("skews", "Uneven experts", text, [case.skew for case in cases], found, effort)


def losses(effort: Effort) -> Search[Section]:
    """Where async disaggregation does not pay."""
    found = yield from compare_all(all_cases(effort), effort)
    rows: list[tuple[Cell, ...]] = [
        (*_row(case_words(each.case), each), _verdict(each)) for each in found if _verdict(each)
    ]
    return Section(
        name="losses",
        title="Where async disaggregation does not pay, or makes no difference",
        text=(
            f"Of the {len(found)} cases above, those in which {ASYNC} is not ahead of {SYNC}, the best synchronous "
            f"system, in both rate and TTFT at low load. Gain is the ratio of rates.{_tally(found)}{_how(effort)}"
        ),
        columns=(*COLUMNS, "verdict"),
        rows=rows,
    )


def _verdict(each: Comparison) -> str:
    leads = {"in rate": each.rate_lead, "in TTFT at low load": each.low_lead}
    return "; ".join(f"{_words(lead)} {what}" for what, lead in leads.items() if _words(lead))


def _words(lead: str) -> str:
    """What a lead says against the asynchronous system; nothing where it is ahead or nobody knows."""
    return "" if lead.startswith((ASYNC, UNKNOWN)) else lead.replace(SYNC, "does not pay")
