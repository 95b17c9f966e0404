"""What a placement of experts wins: the load of the busiest device, and its seconds here.

Simulated: the paper's instance and trace under skewed expert choice; experts in the order of their ids, with one device
more, placed by measured counts, and placed with redundant ones. Rows of devices are those that `Routing::plan` chooses;
the bound is the rate of prompts at which the busiest device has no second left. Rates within an objective are not
searched for (docs/placement.md).
Measured: CPU seconds of the experts of three devices here, one placement after the other.

    python benchmarks/redundant.py [--quick] [--json FILE]

--quick: one skew, two variants, five pairs.
"""

# Shapes: L layers, X experts, S tokens, K experts per token, E MoE devices, P places, R rows, H hidden.

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asap_ray import _native
from asap_ray.cost.skew import Skew, zipf
from asap_ray.evaluation.places import place
from asap_ray.evaluation.systems import Setup, paper_setup
from asap_ray.layout import layout_of
from asap_ray.models.experts import PanelExpertStage
from asap_ray.placement import Placement, contiguous
from asap_ray.spec import Instance, ModelSpec, ParallelSpec, paper
from asap_ray.workload.lengths import PRESETS

MESSAGE_TOKENS = 512  # a quarter of a full batch: each rank plans its own
NUM_MESSAGES = 2


def tokens(chosen_X: NDArray[np.float64], num_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Distinct experts for each token, each with its chance: one a unit of the chances added up in random order."""
    order_SX = np.argsort(rng.random((num_tokens, len(chosen_X))), axis=1)
    ends_SX = np.cumsum(chosen_X[order_SX], axis=1)
    top_k = round(float(chosen_X.sum()))
    marks_SK = rng.random((num_tokens, 1)) + np.arange(top_k)
    at_SK = np.stack([np.searchsorted(ends, marks) for ends, marks in zip(ends_SX, marks_SK, strict=True)])
    return np.take_along_axis(order_SX, np.minimum(at_SK, len(chosen_X) - 1), axis=1).astype(np.int32)


def instance_of(placement: Placement, num_experts: int, top_k: int) -> Instance:
    """As far as a plan needs one."""
    return Instance(
        model=ModelSpec(num_layers=1, hidden=1, num_experts=num_experts, top_k=top_k),
        parallel=ParallelSpec(dp_groups=1, tp=1, moe_devices=len(placement.experts)),
        prefill=paper().prefill,
        placement=placement,
    )


def pairs_of(placement: Placement, ids_SK: NDArray[np.int32], num_experts: int) -> list[list[int]]:
    """Pairs of the places of each device, as the product's own plan divides them."""
    layout = layout_of(instance_of(placement, num_experts, ids_SK.shape[1]))
    native = _native.Layout(**dataclasses.asdict(layout))
    _, num_pairs_P = _native.route(native, placement.expert_of_place, ids_SK)
    remaining = iter(num_pairs_P)
    return [[next(remaining) for _ in experts] for experts in placement.experts]


@dataclass(frozen=True)
class Variant:
    """A way to place experts on so many devices."""

    name: str
    moe_devices: int
    redundant: int | None  # None: in the order of their ids

    def placement(self, counts_X: NDArray[np.float64]) -> Placement:
        """By these counts."""
        if self.redundant is None:
            return contiguous(len(counts_X), self.moe_devices)
        return place(counts_X.tolist(), self.moe_devices, self.redundant)


VARIANTS = (
    Variant("by id", 16, None),
    Variant("by id, one device more", 17, None),
    Variant("placed", 16, 0),
    Variant("placed, 16 redundant", 16, 16),
    Variant("placed, 48 redundant", 16, 48),
)


def alike_in_all_layers(skew: Skew) -> Skew:
    """The first layer's popularity in every layer."""
    assert skew.chosen_LX is not None
    return Skew(f"{skew.name}, layers alike", np.tile(skew.chosen_LX[:1], (len(skew.chosen_LX), 1)))


def messages(skew: Skew, seed: int) -> list[list[NDArray[np.int32]]]:
    """Sampled ones of each layer."""
    assert skew.chosen_LX is not None
    rng = np.random.default_rng(seed)
    return [[tokens(chosen_X, MESSAGE_TOKENS, rng) for _ in range(NUM_MESSAGES)] for chosen_X in skew.chosen_LX]


def loads(sent: list[list[NDArray[np.int32]]], placement: Placement, num_experts: int) -> NDArray[np.float64]:
    """Of each layer and device over the mean."""
    loads_LE = np.zeros((len(sent), len(placement.experts)))
    for layer, of_layer in enumerate(sent):
        for ids_SK in of_layer:
            loads_LE[layer] += [sum(pairs) for pairs in pairs_of(placement, ids_SK, num_experts)]
    normal_LE: NDArray[np.float64] = loads_LE / loads_LE.mean(axis=1, keepdims=True)
    return normal_LE


def moe_bound_rps(setup: Setup, loads_LE: NDArray[np.float64]) -> float:
    """Where the busiest device has no second left, above the inflection point."""
    prompt_tokens = statistics.fmean(PRESETS["A"].draw(4000, seed=0))
    layers_s = float(loads_LE.sum(axis=0).max()) * setup.spec().cost.moe_token_s
    return 1 / (prompt_tokens * layers_s)


def simulated(quick: bool) -> Iterator[dict[str, Any]]:
    """Each skew and variant."""
    setup = paper_setup()
    skews = [zipf(setup.shape, exponent, seed=1) for exponent in (1.0, 0.5)]
    skews = [alike_in_all_layers(skews[0]), skews[0], alike_in_all_layers(skews[1]), skews[1]]
    for skew in skews[:1] if quick else skews:
        assert skew.chosen_LX is not None
        counts_X, sent = skew.chosen_LX.sum(axis=0), messages(skew, seed=2)
        for variant in VARIANTS[:1] + VARIANTS[3:4] if quick else VARIANTS:
            placement = variant.placement(counts_X)
            on = replace(setup, parallel=replace(setup.parallel, moe_devices=variant.moe_devices))
            loads_LE = loads(sent, placement, len(counts_X))
            yield {
                "kind": "simulated",
                "skew": skew.name,
                "variant": variant.name,
                "busiest": float(loads_LE.mean(axis=0).max()),
                "slowest_of_each_layer": float(loads_LE.max(axis=1).mean()),
                "moe_bound_rps": moe_bound_rps(on, loads_LE),
            }


class CpuDevices:
    """Experts of three devices in float32, by a placement; weights of its own for each place."""

    def __init__(
        self, placement: Placement, ids_SK: NDArray[np.int32], num_experts: int, size: tuple[int, int]
    ) -> None:
        hidden, _ = size
        self._pairs_EP = pairs_of(placement, ids_SK, num_experts)
        self._stages = [PanelExpertStage(1, len(experts), *size) for experts in placement.experts]
        self._rows = [torch.randn(sum(pairs), hidden) for pairs in self._pairs_EP]

    @property
    def busiest_rows(self) -> int:
        """Pairs of the busiest device."""
        return max(map(sum, self._pairs_EP))

    def busiest_s(self) -> float:
        """The longest super kernel of a device; they run one after the other."""
        return max(map(self._device_s, range(len(self._stages))))

    def _device_s(self, e: int) -> float:
        num_rows_E = torch.tensor(self._pairs_EP[e], dtype=torch.int32)
        began_s = time.process_time()  # of this thread's work, whatever else the machine does
        asyncio.run(self._stages[e].super_kernel(0, self._rows[e], num_rows_E))
        return time.process_time() - began_s


def measured(num_pairs: int) -> dict[str, Any]:
    """48 experts on three devices, Zipf 1, 2048 tokens that choose 4: CPU seconds in turn, and their ratio."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(3)
    shape = replace(paper_setup().shape, num_layers=1, num_experts=48, top_k=4)
    chosen_LX = zipf(shape, 1.0, seed=4).chosen_LX
    assert chosen_LX is not None
    ids_SK = tokens(chosen_LX[0], 2048, rng)
    placements = {"by id": contiguous(48, 3), "placed, 6 redundant": place(chosen_LX[0].tolist(), 3, 6)}
    devices = {name: CpuDevices(placement, ids_SK, 48, (512, 256)) for name, placement in placements.items()}
    runs: list[Callable[[], float]] = [each.busiest_s for each in devices.values()]
    for run in runs:  # pages come
        run()
    pairs = [[run() for run in runs] for _ in range(num_pairs)]
    ratios = sorted(after / before for before, after in pairs)
    return {
        "kind": "measured",
        "busiest_rows": {name: each.busiest_rows for name, each in devices.items()},
        "mean_rows": ids_SK.size / 3,
        "seconds": pairs,
        "ratio": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
    }


def main() -> None:
    """Print a line for each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one skew, two variants, five pairs")
    parser.add_argument("--json", type=Path, help="all rows go to this file")
    options = parser.parse_args()
    rows = [measured(5 if options.quick else 15)]
    print({key: value for key, value in rows[0].items() if key != "seconds"}, flush=True)
    print("| skew | experts | busiest device | slowest of each layer | MoE bound, RPS |\n|" + "---|" * 5, flush=True)
    for row in simulated(options.quick):
        rows.append(row)
        found = f"{row['busiest']:.2f} | {row['slowest_of_each_layer']:.2f} | {row['moe_bound_rps']:.1f}"
        print(f"| {row['skew']} | {row['variant']} | {found} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
