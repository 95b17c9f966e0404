"""Ways to run the routed experts of one item on a CPU, side by side: seconds per call, one thread.

    python benchmarks/super_kernel.py [--quick] [--json FILE]

Ways take turns within a round, so that a busy machine hurts all alike; layers rotate, so that weights come from
memory as they do in service. JSON rows: {hidden, intermediate, experts, dtype, rows, way, seconds, spread,
flops_per_second}; `spread` is the least and greatest ratio of a round's seconds to those of the product's way.
"""

# Shapes: L layers, E experts, R rows, H hidden, I intermediate, J = 2 I. Matrices are seen as [in, out].

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

from asap_ray.models.experts import ExpertStage, PanelExpertStage
from asap_ray.protocol import MoEStage

Way = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCT = "product"


@dataclass(frozen=True)
class Case:
    """One model on one device."""

    hidden: int
    intermediate: int
    experts: int
    dtype: str
    layers: int


QUICK = tuple(Case(512, 512, 16, dtype, layers=6) for dtype in ("float32", "bfloat16"))
FULL = (*QUICK, *(Case(2048, 768, 128, dtype, layers=1) for dtype in ("float32", "bfloat16")))


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Activation between the two products, over the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def loop_of_mm(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> Way:
    """One product at a time, experts without rows skipped."""

    def run(layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        out_RH, start = torch.empty_like(rows_RH), 0
        for expert, num_rows in enumerate(num_rows_E.tolist()):
            if num_rows:
                own = slice(start, start + num_rows)
                torch.mm(swiglu(rows_RH[own] @ gate_up_LEHJ[layer, expert]), down_LEIH[layer, expert], out=out_RH[own])
                start += num_rows
        return out_RH

    return run


def padded_bmm(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> Way:
    """All experts at once, each with as many rows as the busiest."""

    def run(layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        used = torch.arange(int(num_rows_E.max())) < num_rows_E[:, None]
        padded = rows_RH.new_zeros(*used.shape, rows_RH.shape[1])
        padded[used] = rows_RH
        return torch.bmm(swiglu(torch.bmm(padded, gate_up_LEHJ[layer])), down_LEIH[layer])[used]

    return run


def grouped_mm(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> Way:
    """Two calls for all experts."""

    def run(layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        ends_E = num_rows_E.cumsum(0, dtype=torch.int32)
        gate_up_RJ = torch._grouped_mm(rows_RH, gate_up_LEHJ[layer], offs=ends_E)
        return torch._grouped_mm(swiglu(gate_up_RJ), down_LEIH[layer], offs=ends_E)

    return run


def product(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> Way:
    """What a device runs: panels in float32, else `loop_of_mm` with its activation in native code."""
    stage: MoEStage = ExpertStage(gate_up_LEHJ.mT, down_LEIH.mT)
    if gate_up_LEHJ.dtype is torch.float32:
        stage = in_panels(gate_up_LEHJ, down_LEIH)

    def run(layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        try:
            stage.super_kernel(layer, rows_RH, num_rows_E).send(None)
        except StopIteration as end:
            results: torch.Tensor = end.value
            return results
        raise AssertionError("a kernel suspended")

    return run


def in_panels(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> PanelExpertStage:
    """The stage of float32 over the same weights."""
    num_layers, num_experts, width, hidden = down_LEIH.shape
    stage = PanelExpertStage(num_layers, num_experts, hidden, width)
    for layer in range(num_layers):
        for expert in range(num_experts):
            gate_up_JH = gate_up_LEHJ[layer, expert].T
            stage.put(layer, expert, (gate_up_JH[:width], gate_up_JH[width:], down_LEIH[layer, expert].T))
    return stage


def packed_onednn(gate_up_LEHJ: torch.Tensor, down_LEIH: torch.Tensor) -> Way:
    """One product at a time, weights reordered once for oneDNN (bfloat16 only; an object a matrix, no table)."""
    pack, linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    tables = [[[pack(w.T.contiguous(), 64) for w in layer] for layer in table] for table in (gate_up_LEHJ, down_LEIH)]

    def run(layer: int, rows_RH: torch.Tensor, num_rows_E: torch.Tensor) -> torch.Tensor:
        out, start = [rows_RH[:0]], 0
        for expert, num_rows in enumerate(num_rows_E.tolist()):
            if num_rows:
                gate_up, down = tables[0][layer][expert], tables[1][layer][expert]
                middle = swiglu(linear(rows_RH[start : start + num_rows], gate_up, None, "none", [], ""))
                out.append(linear(middle, down, None, "none", [], ""))
                start += num_rows
        return torch.cat(out)

    return run


def ways_of(case: Case) -> dict[str, Way]:
    """Every way over the same weights, [out, in] in memory as checkpoints have them; `_in_out` stores the transpose."""
    torch.manual_seed(0)
    size, dtype = (case.layers, case.experts), getattr(torch, case.dtype)
    gate_up_LEJH = (torch.randn(*size, 2 * case.intermediate, case.hidden) / case.hidden**0.5).to(dtype)
    down_LEHI = (torch.randn(*size, case.hidden, case.intermediate) / case.intermediate**0.5).to(dtype)
    weights = gate_up_LEJH.mT, down_LEHI.mT
    turned = [matrices.contiguous() for matrices in weights]
    ways = {
        PRODUCT: product(*weights),
        "grouped_mm": grouped_mm(*weights),
        "gmm_in_out": grouped_mm(*turned),
        "loop_of_mm": loop_of_mm(*weights),
        "loop_in_out": loop_of_mm(*turned),
        "padded_bmm": padded_bmm(*turned),
    }
    if case.dtype == "bfloat16":
        ways["packed_onednn"] = packed_onednn(*weights)
    return ways


def measure(case: Case, ways: dict[str, Way], num_rows: int, rounds: int) -> list[dict[str, object]]:
    """Rows of the result for one item size: rows fall on experts at random."""
    generator = torch.Generator().manual_seed(num_rows)
    experts_R = torch.randint(case.experts, (num_rows,), generator=generator)
    num_rows_E = experts_R.bincount(minlength=case.experts).int()
    rows_RH = torch.randn(num_rows, case.hidden, generator=generator).to(getattr(torch, case.dtype))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_idx in range(-1, rounds):  # round -1 warms up
        for name, way in ways.items():
            began_s = time.perf_counter()
            way(round_idx % case.layers, rows_RH, num_rows_E)
            if round_idx >= 0:
                seconds[name].append(time.perf_counter() - began_s)
    flops = 6 * num_rows * case.hidden * case.intermediate
    results: list[dict[str, object]] = []
    for name, taken in seconds.items():
        ratios = [own / product for own, product in zip(taken, seconds[PRODUCT], strict=True)]
        median_s = statistics.median(taken)
        row = {"rows": num_rows, "way": name, "seconds": median_s, "ratio": statistics.median(ratios)}
        results.append(
            asdict(case) | row | {"spread": [min(ratios), max(ratios)], "flops_per_second": flops / median_s}
        )
    return results


@torch.inference_mode()
def main() -> None:
    """Print a table; write rows where asked."""
    parser = argparse.ArgumentParser(description="Ways to run routed experts on a CPU, side by side.")
    parser.add_argument("--quick", action="store_true", help="the small model and few sizes, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, object]] = []
    for case in QUICK if arguments.quick else FULL:
        ways = ways_of(case)
        print(f"\nhidden {case.hidden}, intermediate {case.intermediate}, {case.experts} experts, {case.dtype}: ms")
        print(f"{'rows':>6}" + "".join(f"{name:>16}" for name in ways))
        for num_rows in (1, 16, 256, 1024) if arguments.quick else (1, 4, 16, 64, 256, 1024, 4096):
            rows = measure(case, ways, num_rows, rounds=7 if arguments.quick else 11)
            print(f"{num_rows:>6}" + "".join(f"{1e3 * float(str(row['seconds'])):>16.2f}" for row in rows), flush=True)
            results += rows
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
