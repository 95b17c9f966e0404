"""How near the CPU kernels are to plain matrix products, and prefill beside `transformers` on the same cores.

    python benchmarks/cpu_speed.py [--quick] [--family NAME] [--rounds N] [--json FILE]

float32. First single stages on one thread, as devices run: MoE stage and attention of 2048 tokens beside `torch.mm` of
the model's shapes, all in turn within a round. Then bursts of equal prompts: an instance (two attention groups and two
MoE devices, a process with one thread each; the engine, its buffers and policy, without Ray), one undivided model, and
`transformers` with as many threads as there are cores, in turn. Which of transformers' settings is the fastest is
found out before. Medians, and the least and greatest of rounds. JSON: {stages: [...], whole: [...]}, a row for each
round.

--quick: Qwen3-MoE alone, three rounds, prompts of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from cpu_rates import stages, whole
from cpu_rates.models import MODELS, make
from equal_cores.report import spread

from asap_ray.evaluation.replay_report import check_writable, this_machine
from asap_ray.models.model import Model, load_model

MOE_AIM, PROJECTIONS_AIM, WHOLE_AIM = 0.6, 0.4, 1.3
BURST_TOKENS, QUICK_TOKENS = 8192, 4096


def main() -> None:
    """Measure, print, write JSON."""
    options = parse()
    if options.json:
        check_writable(options.json)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to start
    transformers.utils.logging.disable_progress_bar()
    rounds = 3 if options.quick else options.rounds
    print(f"{this_machine()}; torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    results: dict[str, list[dict[str, Any]]] = {"stages": [], "whole": []}
    for family in [options.family] if options.family else list(MODELS)[: 1 if options.quick else None]:
        directory = options.out / family
        make(family, directory)
        model = load_model(directory)
        results["stages"] += stage_rows(family, model, 9 if options.quick else 3 * rounds)
        for num_tokens in (512,) if options.quick else (512, 2048):
            num_prompts = (QUICK_TOKENS if options.quick else BURST_TOKENS) // num_tokens
            results["whole"] += whole_rows(family, directory, (num_prompts, num_tokens), rounds)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model, few rounds, under a minute")
    parser.add_argument("--family", choices=list(MODELS), help="one model alone")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="pairs; three times as many of stages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file, after every model")
    parser.add_argument("--out", type=Path, default=Path("out/cpu_speed"), metavar="DIR", help="holds the models")
    return parser.parse_args()


@torch.inference_mode()
def stage_rows(family: str, model: Model, rounds: int) -> list[dict[str, Any]]:
    """Rates of stages and products, in turn; prints each stage's share of the best product of its round."""
    torch.set_num_threads(1)
    rows_an_expert = stages.TOKENS * model.spec.top_k // model.config.num_experts
    products = stages.products(model, rows_an_expert)
    aims = {"MoE stage": MOE_AIM, "attention projections": PROJECTIONS_AIM, "attention": None}
    works = products | {
        "MoE stage": stages.moe_stage(model),
        "attention projections": stages.projections(model),
        "attention": stages.attention(model),
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for round_idx in range(-1, rounds):
        for name, work in works.items():
            seconds = stages.seconds(work, round_idx)
            if round_idx >= 0:  # the first warms up
                taken[name].append(seconds)
    rates = {name: [works[name].flops / each / 1e9 for each in taken[name]] for name in works}
    peak = max(products, key=lambda name: statistics.median(rates[name]))
    print(f"\n{family}, {stages.TOKENS} tokens, one thread; GFLOP/s, then share of the peak ({peak}), by rounds")
    for name in works:
        shares = [own / best for own, best in zip(rates[name], rates[peak], strict=True)]
        aim = aims.get(name)
        verdict = f"  aim {aim}: {'hit' if statistics.median(shares) >= aim else 'missed'}" if aim else ""
        print(f"{name:<24} {spread(rates[name], 0):>22} {spread(shares, 2):>22}{verdict}", flush=True)
    return [{"family": family, "name": name, "gflops_per_second": rate} for name in works for rate in rates[name]]


def whole_rows(family: str, directory: Path, size: tuple[int, int], rounds: int) -> list[dict[str, Any]]:
    """Tokens/s of each system in turn, on bursts of so many prompts of so many tokens; prints ratios."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = load_model(directory)
    num_prompts, num_tokens = size
    bursts = [whole.prompts(num_prompts, num_tokens, model.config.vocab_size, seed) for seed in range(rounds + 1)]
    references = whole.references(directory)
    trial = bursts[-1][: -(-whole.BATCH_TOKENS // num_tokens)]
    trials = {name: min(run(trial), run(trial)) for name, run in references.items()}
    fastest = min(trials, key=lambda name: trials[name])
    print(f"\n{family}, {num_prompts} prompts of {num_tokens}; tokens/s, then ratio to transformers, by rounds")
    tried = (f"{name} {len(trial) * num_tokens / trial_s:.0f}" for name, trial_s in trials.items())
    print("transformers: " + "; ".join(tried), flush=True)
    with whole.instance(directory) as instance:
        runs = {"instance": instance, "undivided": whole.undivided(model), "transformers": references[fastest]}
        rates = rates_of(runs, bursts)
    for name in runs:
        ratios = [own / its for own, its in zip(rates[name], rates["transformers"], strict=True)]
        verdict = ""
        if name == "instance":
            verdict = f"  aim {WHOLE_AIM}: {'hit' if statistics.median(ratios) >= WHOLE_AIM else 'missed'}"
        print(f"{name:<24} {spread(rates[name], 0):>24} {spread(ratios, 2):>22}{verdict}", flush=True)
    labels = {"family": family, "num_tokens": num_tokens, "transformers_setting": fastest}
    return [labels | {"name": name, "tokens_per_second": rate} for name in runs for rate in rates[name]]


def rates_of(runs: dict[str, whole.Run], bursts: Sequence[list[Any]]) -> dict[str, list[float]]:
    """Every burst but the last on each system in turn, forwards and backwards; the last warms up."""
    for run in runs.values():
        run(bursts[-1])
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for round_idx, burst in enumerate(bursts[:-1]):
        for name in list(runs)[:: -1 if round_idx % 2 else 1]:
            rates[name].append(sum(request.num_tokens for request in burst) / runs[name](burst))
    return rates


if __name__ == "__main__":
    main()
