"""Sections that the cost model alone answers: what the paper's section 2 and 5.4 measured of single kernels."""

from __future__ import annotations

from typing import Final

import numpy as np

from asap_ray.batch import Request
from asap_ray.cost.model import CostModel
from asap_ray.evaluation.points import paper_case
from asap_ray.evaluation.report_plots import lines
from asap_ray.evaluation.searches import Search
from asap_ray.evaluation.section import PAPER, SIMULATED, Cell, Effort, Section, columns
from asap_ray.workload.lengths import PRESETS

LENGTHS: Final = tuple(512 * 2**i for i in range(7))
PAPER_EP: Final = 32
"""Devices of the paper's profile (2.2); ASAP has 16."""


def _cost(moe_devices: int = 16) -> CostModel:
    setup = paper_case().setup()
    return CostModel(shape=setup.shape, hardware=setup.hardware, tp=4, moe_devices=moe_devices)


def _prompts(num_prompts: int, num_tokens: int) -> list[Request]:
    return [Request(request_id=str(i), num_tokens=num_tokens, arrival_s=0.0) for i in range(num_prompts)]


def kernels(effort: Effort) -> Search[Section]:  # noqa: ARG001
    """Figure 3: one layer of attention and of experts against the tokens of one prompt."""
    yield from ()
    narrow, wide = _cost(), _cost(PAPER_EP)
    attention_ms = [1e3 * narrow.attention_s(_prompts(1, n)) for n in LENGTHS]
    moe_ms = [[1e3 * cost.moe_s(n) for n in LENGTHS] for cost in (narrow, wide)]
    rows = [(n, a, e16, e32, 100 * e32 / a) for n, a, e16, e32 in zip(LENGTHS, attention_ms, *moe_ms, strict=True)]
    series = {
        "attention, TP 4": list(zip(LENGTHS, attention_ms, strict=True)),
        "MoE, 16 devices": list(zip(LENGTHS, moe_ms[0], strict=True)),
        "MoE, 32 devices": list(zip(LENGTHS, moe_ms[1], strict=True)),
    }
    return Section(
        name="kernels",
        title="Attention and MoE against length (Figures 3a and 3b)",
        text=(
            "Paper: attention grows with the square of the length; MoE is flat up to about 2k tokens, then linear "
            f"(ours: up to {narrow.inflection_tokens:,.0f}); above 16k MoE is under 15 % of attention, where 32 "
            "devices hold the experts."
        ),
        columns=columns("tokens", *((f"{what}, ms", SIMULATED) for what in ("attention", "MoE E=16", "MoE E=32")))
        + columns(("MoE E=32 of attention, %", SIMULATED)),
        rows=rows,
        figure=lines(series, "tokens", "ms a layer", log="xy"),
    )


def same_tokens(effort: Effort) -> Search[Section]:  # noqa: ARG001
    """2.2.1: 32k tokens, as one prompt or as many."""
    yield from ()
    cost, total = _cost(), 32 * 1024
    times_ms = {n: 1e3 * cost.attention_s(_prompts(n, total // n)) for n in (1, 2, 4, 8, 16, 32)}
    rows = [(f"{n} x {total // n:,}", ms, ms / times_ms[32], 4.2 if n == 1 else None) for n, ms in times_ms.items()]
    return Section(
        name="same_tokens",
        title="32k tokens in one prompt or in many (2.2.1)",
        text="Why batches of equal token counts are not balanced. The ratio 4.2 is an input of the cost model.",
        columns=columns(
            "batch", ("attention, ms a layer", SIMULATED), ("of 32 x 1k", SIMULATED), ("of 32 x 1k", PAPER)
        ),
        rows=rows,
        figure=lines({"attention": list(times_ms.items())}, "prompts", "ms a layer", log="x"),
    )


def lengths(effort: Effort) -> Search[Section]:  # noqa: ARG001
    """Figure 5: the prompts."""
    yield from ()
    rows: list[tuple[Cell, ...]] = []
    series = {}
    for name, preset in PRESETS.items():
        drawn = np.array(preset.draw(100_000, seed=0))
        marks = np.percentile(drawn, (10, 50, 90, 99))
        long_share = 100 * drawn[drawn > 16384].sum() / drawn.sum()
        rows.append((name, float(drawn.mean()), *map(float, marks), float(long_share)))
        series[name] = [(float(np.percentile(drawn, share)), float(share)) for share in range(1, 100, 7)]
    return Section(
        name="lengths",
        title="Lengths of prompts (Figure 5)",
        text=(
            "The paper's distribution is private. It states a mean of 5k tokens on 31 to 100k; ours have that, before "
            "prompts above 32k are left out as in 5.1. The shapes are our assumption: A is the default, B lighter, C "
            "heavier, M a mixture."
        ),
        columns=columns(
            *("preset", "mean", "p10", "p50", "p90", "p99"), "tokens in prompts above 16k, % (all drawn by our formula)"
        ),
        rows=rows,
        figure=lines(series, "tokens", "prompts up to this length, %", log="x"),
    )


def dispatch(effort: Effort) -> Search[Section]:  # noqa: ARG001
    """5.4: asynchronous dispatch against synchronous sends."""
    yield from ()
    cost = _cost()
    paper_ratio = {1024: 4.0, 8192: 5.8}
    rows, ours, p2p = [], [], []
    for n in (128, 256, 512, 1024, 2048, 4096, 8192):
        ours.append((n, 1e3 * cost.dispatch_s(n)))
        p2p.append((n, 1e3 * cost.p2p_dispatch_s(n)))
        rows.append((n, ours[-1][1], p2p[-1][1], p2p[-1][1] / ours[-1][1], paper_ratio.get(n)))
    return Section(
        name="dispatch",
        title="Dispatch against synchronous P2P (5.4)",
        text=(
            "Receivers are ready: a busy one would hold up the synchronous sender further. The slopes come from bytes "
            "and 400 GB/s a link; the ratios at 1k and 8k are inputs of the cost model, the rest follows."
        ),
        columns=columns(
            "tokens",
            ("async dispatch, ms", SIMULATED),
            ("P2P, ms", SIMULATED),
            ("ratio", SIMULATED),
            ("ratio", PAPER),
        ),
        rows=rows,
        figure=lines({"async dispatch": ours, "synchronous P2P": p2p}, "tokens", "ms", log="xy"),
    )
