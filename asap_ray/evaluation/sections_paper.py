"""Sections of the paper's own comparison: 5.2, 5.3 and 5.5."""

from __future__ import annotations

from typing import Final

from asap_ray.evaluation.intervals import Interval, interval_of
from asap_ray.evaluation.points import Bucket
from asap_ray.evaluation.report_plots import beside, lines, stacked
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.section import MAIN, PAPER, SIMULATED, Cell, Effort, Section, columns, per_cent, swept
from asap_ray.evaluation.sweep import SweepResult
from asap_ray.evaluation.sync_systems import POLICIES
from asap_ray.workload.lengths import MAX_TOKENS

TTFT_PAPER_S: Final = {
    1.0: {"paper": 0.350, "default": 0.533, "chunked": 0.388},
}
"""5.2, absolute."""

CUTS_PAPER: Final = {1.0: (34.3, 9.8), 4.0: (54.9, 41.8), 8.0: (None, 68.3)}
"""5.2: by how much ASAP is below Default and ChunkedPrefill, per cent; at 8 RPS Default does not keep up."""

SLO_PAPER_RPS: Final = {"paper": 20.0, "default": 6.8, "chunked": 10.5, "no_dual": 17.5, "no_overlap": 17.8}
"""5.2 and 5.5."""

SLO_QUOTED: Final[dict[str, Cell]] = {**SLO_PAPER_RPS, "no_super_kernel": "18.9 (from +6 %)"}
"""The paper says only what the super kernel gains."""


def _mean_s(result: SweepResult, system: str, rps: float) -> Interval:
    return interval_of([outcome.ttft_mean_s for outcome in result.over_seeds(system, rps)])


def ttft(effort: Effort) -> Search[Section]:
    """Mean TTFT at 1, 4 and 8 RPS, each beside the paper's."""
    result = yield from swept(effort.sweep)
    rows: list[tuple[Cell, ...]] = []
    for rps, (cut_default, cut_chunked) in CUTS_PAPER.items():
        means = {system: _mean_s(result, system, rps) for system in MAIN}
        for system in MAIN:
            cut = {"default": cut_default, "chunked": cut_chunked}.get(system)
            saved = per_cent(means["paper"].mean, means[system].mean) if system in ("default", "chunked") else None
            rows.append((rps, system, means[system], TTFT_PAPER_S.get(rps, {}).get(system), saved, cut))
    return Section(
        name="ttft",
        title="Mean TTFT at 1, 4 and 8 RPS (5.2)",
        text=(
            "`paper` is the paper's own policy, `asap` is what this product does; `strong` is our best synchronous "
            "system. The last two columns say by how much `paper` is below each baseline; the paper's at 4 and 8 RPS "
            "are all it states there."
        ),
        columns=columns(
            "RPS",
            "system",
            ("mean TTFT, s", SIMULATED),
            ("mean TTFT, s", PAPER),
            ("ASAP is below, %", SIMULATED),
            ("ASAP is below, %", PAPER),
        ),
        rows=rows,
    )


def curves(effort: Effort) -> Search[Section]:
    """Mean TTFT against rate (Figure 14)."""
    result = yield from swept(effort.sweep)
    rates = effort.sweep.rates
    rows: list[tuple[Cell, ...]] = [(system, *(_mean_s(result, system, rps) for rps in rates)) for system in MAIN]
    shown = {system: [(rps, _mean_s(result, system, rps).mean) for rps in rates] for system in MAIN}
    return Section(
        name="curves",
        title="Mean TTFT against rate (5.2)",
        text=f"Seconds. The dashed line is the objective. {effort.sweep.bound().text()}.",
        columns=columns("system", *((f"{rps:g} RPS", SIMULATED) for rps in rates)),
        rows=rows,
        figure=lines(shown, "RPS", "mean TTFT, s", log="y", limit=("objective", effort.sweep.slo_s)),
    )


def throughput(effort: Effort) -> Search[Section]:
    """The rate within the objective (5.2)."""
    result = yield from swept(effort.sweep)
    ablated = yield from swept(effort.ablations)
    means = {system: each.slo(system, "mean") for each in (result, ablated) for system in each.sweep.systems}
    p99s = {system: result.slo(system, "p99") for system in MAIN}
    bound_rps = effort.sweep.bound().rps
    rows: list[tuple[Cell, ...]] = [
        (system, mean, p99s.get(system), SLO_QUOTED.get(system), mean.times(100 / bound_rps))
        for system, mean in means.items()
    ]
    return Section(
        name="throughput",
        title=f"RPS with TTFT within {effort.sweep.slo_s:g} s (5.2)",
        text=(
            "Highest rate, searched seed by seed on a grid of "
            f"{effort.sweep.resolution_rps:g} RPS in runs of {effort.sweep.duration_s:g} s. The paper does not say "
            f"whether its objective is for the mean or for a percentile. {effort.sweep.bound().text()}. The bound is "
            "that of the asynchronous split: synchronous systems share every device between attention and experts. "
            "The systems without one part are searched by mean alone, as in the paper."
        ),
        columns=columns(
            "system", ("by mean", SIMULATED), ("by p99", SIMULATED), ("RPS", PAPER), ("mean, % of bound", SIMULATED)
        ),
        rows=rows,
        figure=beside(
            list(means),
            {
                "by mean": list(means.values()),
                "by p99": [p99s.get(system) for system in means],
                "paper": [SLO_PAPER_RPS.get(system) for system in means],
            },
            "RPS",
        ),
    )


PARTS: Final = ("kernel", "queue", "wait", "outside the layers")
"""Of a TTFT, in the order of `_parts_s`."""


def split(effort: Effort) -> Search[Section]:
    """Where TTFT goes at 4 RPS, by length (Figure 15)."""
    result = yield from swept(effort.sweep)
    parts_s = {
        (system, bucket): _parts_s(bucket, _outside_s(system, effort))
        for system in ("default", "paper", "asap")
        for bucket in result.over_seeds(system, 4.0)[0].buckets
    }
    drawn = {bar: parts for bar, parts in parts_s.items() if bar[0] != "asap"}  # two systems, as in Figure 15
    return Section(
        name="split",
        title="Where TTFT goes at 4 RPS, by length (5.3)",
        text=(
            "Seconds, means, seed 0. Queue ends with the first step of a synchronous prompt and the first admission of "
            "an asynchronous one. Kernel is what the prompt would take alone of the kernels and transfers of its own "
            "system, whose experts lie on all devices or on E of them; but no more than it was inside the layers, for "
            "pieces of one prompt overlap, and the wait of a prompt that gains by it counts as none. Wait is the rest "
            "inside the layers: barriers and other prompts of the step, or the other slot and other groups. Outside "
            "the layers is a constant of the cost model."
        ),
        columns=columns(
            *("system", "tokens", "requests"),
            *((name, SIMULATED) for name in ("TTFT", *PARTS, "queue, %", "wait, %")),
            ("%", PAPER),
        ),
        rows=[_split_row(system, bucket, parts) for (system, bucket), parts in parts_s.items()],
        figure=stacked(
            [f"{system}\n{_label(bucket)}" for system, bucket in drawn],
            dict(zip(PARTS, zip(*drawn.values(), strict=True), strict=True)),
            "mean TTFT, s",
        ),
    )


def _split_row(system: str, bucket: Bucket, parts_s: tuple[float, ...]) -> tuple[Cell, ...]:
    shares = [100 * part_s / bucket.ttft_s for part_s in parts_s[1:3]]
    is_quoted = system == "default" and bucket.up_to_tokens == 512
    quoted = "queue 30, wait 55" if is_quoted else None
    return (system, _label(bucket), bucket.num_requests, bucket.ttft_s, *parts_s, *shares, quoted)


def _outside_s(system: str, effort: Effort) -> float:
    hardware = effort.sweep.case.setup().hardware
    return hardware.step_request_overhead_s if system in POLICIES else hardware.request_overhead_s


def _parts_s(bucket: Bucket, outside_s: float) -> tuple[float, float, float, float]:
    wait_s = max(0.0, bucket.ttft_s - bucket.kernel_s - bucket.queue_s - outside_s)  # not -1e-16
    return bucket.kernel_s, bucket.queue_s, wait_s, outside_s


def _label(bucket: Bucket) -> str:
    if bucket.up_to_tokens > MAX_TOKENS:
        return "above 16k"
    return f"up to {bucket.up_to_tokens // 1024}k" if bucket.up_to_tokens >= 1024 else f"up to {bucket.up_to_tokens}"


GAINS_PAPER: Final = {"no_dual": 14.3, "no_overlap": 12.4, "no_super_kernel": 6.0}
"""5.5: what each part adds to the rate within the objective, per cent."""

LOW_PAPER: Final = {"no_dual": "-6.5 %", "no_overlap": "negligible", "no_super_kernel": "+13.4 ms"}
"""5.5: TTFT at low load without each part."""


def ablations(effort: Effort) -> Search[Section]:
    """5.5: the paper's system without one of its parts."""
    complete = yield from swept(effort.sweep)
    result = yield from swept(effort.ablations)
    whole, whole_low_s = complete.slo("paper", "mean"), _mean_s(complete, "paper", 1.0).mean
    rows: list[tuple[Cell, ...]] = []
    for name, gain in GAINS_PAPER.items():
        rps, low_s = result.slo(name, "mean"), _mean_s(result, name, 1.0).mean
        is_known = rps.mean > 0 and not rps.side and not whole.side
        gain_here = 100 * (whole.mean / rps.mean - 1) if is_known else None
        more = (1e3 * (low_s - whole_low_s), 100 * (low_s - whole_low_s) / low_s)
        rows.append((name, rps, SLO_QUOTED[name], gain_here, gain, *more, LOW_PAPER[name]))
    return Section(
        name="ablations",
        title="Ablations (5.5)",
        text=(
            f"Against the paper's whole system, {whole.text(1)} RPS by mean here and 20 in the paper. At low load two "
            "batches cost the paper 6.5 %, so its system without them answers sooner; ours shows what the model has "
            "of it. More TTFT is counted from the whole system, in per cent of the system without the part."
        ),
        columns=columns(
            "without",
            ("RPS by mean", SIMULATED),
            ("RPS", PAPER),
            ("the part gains, %", SIMULATED),
            ("the part gains, %", PAPER),
            ("more TTFT at 1 RPS, ms", SIMULATED),
            ("more TTFT at 1 RPS, %", SIMULATED),
            ("more TTFT at 1 RPS", PAPER),
        ),
        rows=rows,
    )
