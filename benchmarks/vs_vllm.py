"""asap-ray beside vLLM's CPU build on the same two cores: same checkpoint, same requests, float32.

    benchmarks/peers/make_vllm_venv.sh DIR
    python benchmarks/vs_vllm.py --vllm-venv DIR [--quick | --pairs N --requests N --rates A,B] [--config FILE]
        [--json FILE]

A round starts each system in turn (`peers/systems.py`) and asks of it (`peers/load.py`): greedy tokens of fixed
prompts, equal on all; a burst, whose tokens/s are the capacity; open loops at rising rates; and a short prompt beside
a long one. The table shows medians and ranges over rounds, the aims ratios of the same round. About 20 minutes a
round; --quick: one round with one rate, 7 minutes. JSON rows, one for every (system, phase, load, repetition):
the fields of `load.Measured` with `system` and `repetition`. Status 1 if greedy tokens differ, 2 if nothing could
be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peers.load import VOCAB_SIZE, Measured, burst, first_tokens, heavy_tailed, open_loop, straggler
from peers.server import System, adopt_orphans, running
from peers.systems import systems
from peers.verdict import Figures, aims, figures, table

from asap_ray.errors import AsapError, ConfigError
from asap_ray.evaluation.replay_report import check_writable, this_machine
from asap_ray.models.random_checkpoint import make_random_checkpoint
from asap_ray.models.random_config import Sizes
from asap_ray.workload.trace import TraceRequest

MODEL: Final = Sizes(
    hidden=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    num_experts=16,
    top_k=4,
    moe_intermediate=512,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=16384,
    tie_word_embeddings=False,
    dtype=torch.bfloat16,  # as stored
    seed=0,
)
"""138.7 M parameters, 39 M at work on a token."""

LENGTHS_SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked of each system in a round."""

    num_requests: int
    rates: tuple[float, ...]  # requests a second
    probes: int


QUICK: Final = Load(40, (2.8,), probes=3)


def main() -> None:
    """Measure, print, write JSON."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        agree = compare(options)
    except AsapError as error:
        print(f"vs_vllm: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if agree else 1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-venv", type=Path, required=True, metavar="DIR", help="see peers/make_vllm_venv.sh")
    parser.add_argument("--quick", action="store_true", help="one round with one rate")
    parser.add_argument("--pairs", type=int, metavar="N", help="rounds; 5 by default")
    parser.add_argument("--requests", type=int, default=100, metavar="N", help="of each phase")
    parser.add_argument("--rates", default="1.2,2,2.8,3.6", metavar="A,B", help="requests a second of the open loops")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of asap-ray serve; the model is replaced")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file, after every system")
    parser.add_argument("--out", type=Path, default=Path("out/vs_vllm"), metavar="DIR", help="model, logs, caches")
    return parser.parse_args()


def compare(options: argparse.Namespace) -> bool:
    """All rounds; whether every system chose the same greedy tokens."""
    load = QUICK if options.quick else chosen_load(options)
    requests = heavy_tailed(load.num_requests, LENGTHS_SEED)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.json:
        check_writable(options.json)
    contenders = systems(folder / "model", options.config, options.vllm_venv.absolute(), folder)
    if not (folder / "model" / "config.json").exists():
        make_random_checkpoint(folder / "model", **MODEL)
    mean_tokens = sum(request.input_length for request in requests) / len(requests)
    print(f"{this_machine()}; {len(requests)} requests of {mean_tokens:.0f} tokens in the mean", flush=True)

    adopt_orphans()
    rows: list[dict[str, Any]] = []
    results: dict[str, list[Figures]] = {system.name: [] for system in contenders}
    tokens: dict[str, list[list[int]]] = {system.name: [] for system in contenders}
    for repetition in range(options.pairs or (1 if options.quick else 5)):
        first = repetition % len(contenders)  # nobody always has the machine as the one before left it
        for system in contenders[first:] + contenders[:first]:
            with running(system, folder / f"{system.name}.log") as url:
                tokens[system.name].append(asyncio.run(first_tokens(url)))
                phases = measure(system, url, load, requests, repetition)
            results[system.name].append(figures(phases))
            rows += [{"system": system.name, "repetition": repetition} | asdict(phase) for phase in phases]
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return report(results, tokens)


def chosen_load(options: argparse.Namespace) -> Load:
    """What the command line asks for.

    Raises:
        ConfigError: no number of requests, or no rates.
    """
    if options.requests < 2:
        raise ConfigError(f"--requests {options.requests}: at least 2")
    try:
        rates = tuple(float(rate) for rate in options.rates.split(","))
    except ValueError:
        raise ConfigError(f"--rates {options.rates!r} must be numbers with commas between them") from None
    return Load(options.requests, rates, probes=5)


def measure(system: System, url: str, load: Load, requests: list[TraceRequest], repetition: int) -> list[Measured]:
    """The phases of one system in one round. Lengths never change; every phase has token ids of its own."""
    seed = 100 * (repetition + 1)
    phases = [asyncio.run(burst(url, requests, seed))]
    for idx, rate in enumerate(load.rates, start=1):
        phases.append(asyncio.run(open_loop(url, requests, rate, seed + idx)))
    phases += asyncio.run(straggler(url, system.num_ranks, load.probes, seed + len(phases)))
    for phase in phases:
        print(f"{repetition} {system.name:<12} {phase}", flush=True)
    return phases


def report(results: dict[str, list[Figures]], tokens: dict[str, list[list[int]]]) -> bool:
    """Print table and aims; whether the greedy tokens agree, in every round."""
    print("\nMeasured, median [least .. greatest] over rounds\n")
    print("\n".join([*table(results), "", *aims(results)]))
    agree = len({tuple(each) for rounds in tokens.values() for each in rounds}) == 1
    print(f"greedy first tokens: {'equal' if agree else 'DIFFERENT'}: {tokens}")
    return agree


if __name__ == "__main__":
    main()
