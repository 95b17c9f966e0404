"""Long prompts on one attention rank: what memory they take, and that a prompt in chunks is the prompt.

    python benchmarks/long_prompt.py [--quick] [--json FILE]

Small random models of three kinds of attention, float32, one thread, one process a case. First a prompt of 32k tokens
for each kind, in one pass and in chunks of 4k; then one of 100k tokens of DeepSeek-V3.2, in chunks of 4k and of 6k. All
in pages of 64 tokens. --quick: 2k tokens by 1k; 6k by 1k and 1.5k. Experts run in the same process, 1024 tokens at a
time, so that little of the memory is theirs. JSON rows: {model, tokens, chunk, seconds, kept_bytes, peak_bytes,
rss_bytes, square_bytes, error}: what keys, values, latents take; what the whole prompt took beyond weights and
interpreter, and with them; one float32 matrix of all queries and keys; and, of the second of two ways, the largest
difference of the last logits as a share of the largest.
"""

# Shapes: S tokens, K experts a token, R (token, expert) pairs, H hidden, V vocabulary.

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib
import json
import multiprocessing
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request
from asap_ray.kvcache.storage import Storage
from asap_ray.models.decoder import Decoder
from asap_ray.models.experts import ExpertStage
from asap_ray.models.model import load_model
from asap_ray.protocol import Routed

BLOCK_SIZE: Final = 64
EXPERTS: Final = 8
VOCABULARY: Final = 2048
SLICE: Final = 1024
"""Tokens whose rows go through the experts together."""

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "max_position_embeddings": 1 << 17,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_LATENT: Final[dict[str, Any]] = {
    **_COMMON,
    "num_key_value_heads": 4,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}
SPARSE: Final = "DeepseekV32"
MODELS: Final[dict[str, dict[str, Any]]] = {
    "Qwen3Moe": {**_COMMON, "num_key_value_heads": 2, "head_dim": 64, "num_experts": EXPERTS},
    "DeepseekV3": _LATENT,
    # Scores of few heads are often zero together, and who is chosen among equals is nobody's promise.
    SPARSE: {**_LATENT, "index_topk": 256, "index_head_dim": 16, "index_n_heads": 8},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One prompt on one model."""

    directory: Path
    model: str
    num_tokens: int
    chunk: int


def make_models(folder: Path) -> None:
    """A random checkpoint each, by `transformers`, which no measured process imports."""
    transformers = importlib.import_module("transformers")
    transformers.logging.disable_progress_bar()
    for name, sizes in MODELS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**sizes)
        getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder / name)


def resident(which: str) -> int:
    """VmRSS or its peak VmHWM, in bytes."""
    found = re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def run_experts(stage: ExpertStage, layer: int, routed: Routed) -> torch.Tensor:
    """One MoE device with every expert: dispatch, super kernel, weighted sum, a slice of tokens at a time."""
    sums_SH = torch.zeros_like(routed.hidden_SH)
    for start in range(0, len(sums_SH), SLICE):
        own = slice(start, start + SLICE)
        experts_R, order_R = routed.expert_ids_SK[own].flatten().sort(stable=True)
        row_idx_R = order_R // routed.expert_ids_SK.shape[1]
        num_rows_E = experts_R.bincount(minlength=EXPERTS).int()
        results_RH = drive(stage.super_kernel(layer, routed.hidden_SH[own][row_idx_R], num_rows_E))
        sums_SH[own].index_add_(0, row_idx_R, results_RH * routed.weights_SK[own].flatten()[order_R, None])
    return sums_SH


def run_prompt(attention: Decoder, experts: ExpertStage, prompt: Request, chunk: int) -> torch.Tensor:
    """Logits of the last position, [V]."""
    for start in range(0, prompt.num_tokens, chunk):
        piece = prompt.chunk(start, min(start + chunk, prompt.num_tokens))
        state, expert_out = drive(attention.start(Batch((piece,)))), None
        for layer in range(attention.num_layers):
            expert_out = run_experts(experts, layer, drive(attention.attend(state, layer, expert_out)))
        drive(attention.finish(state, expert_out))
    return attention.logits(state)[0]


@torch.inference_mode()
def measure(case: Case) -> tuple[dict[str, Any], list[float]]:
    """One row of the result, and the logits."""
    torch.set_num_threads(1)
    model = load_model(case.directory)
    attention = model.attention_stage(SoloCollective(), torch.float32)
    experts = model.expert_stage(range(EXPERTS), torch.float32)
    spec, num_blocks = attention.cache_spec(BLOCK_SIZE), -(-case.num_tokens // BLOCK_SIZE)
    attention.keep_in(Storage(spec, num_blocks))
    token_ids = torch.randint(VOCABULARY, (case.num_tokens,), generator=torch.Generator().manual_seed(0))
    prompt = Request(
        request_id="long",
        num_tokens=case.num_tokens,
        arrival_s=0.0,
        token_ids=token_ids.int().numpy().tobytes(),
        table=tuple(range(num_blocks)),
    )
    warm = dataclasses.replace(prompt, request_id="warm", num_tokens=SLICE, token_ids=prompt.token_ids[: 4 * SLICE])
    run_prompt(attention, experts, warm, case.chunk)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before, start = resident("VmRSS"), time.perf_counter()
    logits_V = run_prompt(attention, experts, prompt, case.chunk)
    row = {
        "model": case.model,
        "tokens": case.num_tokens,
        "chunk": case.chunk,
        "seconds": time.perf_counter() - start,
        "kept_bytes": num_blocks * spec.block_bytes,
        "peak_bytes": resident("VmHWM") - before,
        "rss_bytes": resident("VmHWM"),
        "square_bytes": 4 * case.num_tokens**2,
    }
    return row, logits_V.tolist()


def in_a_process(function: Any, *arguments: Any) -> Any:
    """Call it where nothing else has been."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def cases_of(folder: Path, is_quick: bool) -> list[Case]:
    """In the order in which they run."""
    in_one, long, chunks = (2048, 6144, (1024, 1536)) if is_quick else (32768, 100_000, (4096, 6144))
    shorter = [Case(folder / name, name, in_one, chunk) for name in MODELS for chunk in (in_one, chunks[0])]
    return shorter + [Case(folder / SPARSE, SPARSE, long, chunk) for chunk in chunks]


def main() -> None:
    """Print a line a case; write rows where asked."""
    parser = argparse.ArgumentParser(description="Memory of long prompts.")
    parser.add_argument("--quick", action="store_true", help="shorter prompts, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    logits: list[torch.Tensor] = []
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(make_models, Path(folder))
        for case in cases_of(Path(folder), arguments.quick):
            row, last = in_a_process(measure, case)
            logits.append(torch.tensor(last))
            if rows and rows[-1]["tokens"] == case.num_tokens and rows[-1]["model"] == case.model:
                row["error"] = float((logits[-1] - logits[-2]).abs().max() / logits[-2].abs().max())
            rows.append(row)
            sizes = (f"{key.split('_')[0]} {row[key] / 1e6:.0f}" for key in row if key.endswith("_bytes"))
            print(f"{case.model:>11}, {case.num_tokens} tokens by {case.chunk}: {row['seconds']:.1f} s; ", end="")
            print(f"MB: {', '.join(sizes)}; error {row.get('error', 'not asked')}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
