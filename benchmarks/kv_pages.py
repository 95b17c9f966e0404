"""What pages cost a prompt that hits nothing, and what a hit saves one.

    python benchmarks/kv_pages.py [--quick] [--json FILE]

Prefill of 2048 tokens (--quick: 512) of the demo model, attention and experts in one thread, float32: without pages,
with pages and no hit, and with half of the prompt in them; five rounds (--quick: three) in turn, after one to warm. CPU
seconds of the thread. JSON: {tokens, without_s, pages_s, hit_s, write_s, pages_ratio, hit_ratio}, lists by round;
ratios are to `without_s` of the same round, and `write_s` is what the writing alone takes in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request
from asap_ray.kvcache.storage import PagedRows, Storage
from asap_ray.models.decoder import Decoder
from asap_ray.models.experts import ExpertStage
from asap_ray.models.model import load_model
from asap_ray.models.random_checkpoint import demo, make_random_checkpoint
from asap_ray.protocol import Routed

BLOCK_SIZE: Final = 64
SIZES: Final = demo()


def run_experts(stage: ExpertStage, layer: int, routed: Routed) -> torch.Tensor:
    """One MoE device with every expert: dispatch, super kernel, weighted sum."""
    experts_R, order_R = routed.expert_ids_SK.flatten().sort(stable=True)
    row_idx_R = order_R // routed.expert_ids_SK.shape[1]
    num_rows_E = experts_R.bincount(minlength=SIZES["num_experts"]).int()
    results_RH = drive(stage.super_kernel(layer, routed.hidden_SH[row_idx_R], num_rows_E))
    weighted_RH = results_RH * routed.weights_SK.flatten()[order_R, None]
    return torch.zeros_like(routed.hidden_SH).index_add_(0, row_idx_R, weighted_RH)


def seconds(attention: Decoder, experts: ExpertStage, prompt: Request) -> float:
    """Of this thread, from the prompt to its first token."""
    began_s = time.thread_time()
    state, expert_out = drive(attention.start(Batch((prompt,)))), None
    for layer in range(attention.num_layers):
        expert_out = run_experts(experts, layer, drive(attention.attend(state, layer, expert_out)))
    drive(attention.finish(state, expert_out))
    return time.thread_time() - began_s


def write_seconds(storage: Storage, prompt: Request) -> float:
    """Of this thread, for the rows of a whole prompt in all layers."""
    paged = PagedRows(storage, prompt.table, 0)
    parts = [(kind.heads, part) for kind in storage.spec.kinds for part in kind.parts]
    rows = [torch.randn(prompt.num_tokens, *part).transpose(0, 1) for part in parts]
    began_s = time.thread_time()
    for layer_idx in range(storage.spec.num_layers):
        paged.extend(layer_idx, 0, *rows)
    return time.thread_time() - began_s


def prompts_of(num_tokens: int) -> tuple[Request, Request, Request]:
    """One prompt: without pages, in pages, and with the first half of it there already."""
    token_ids = torch.randint(SIZES["vocab_size"], (num_tokens,), generator=torch.Generator().manual_seed(0))
    plain = Request(
        request_id="prompt", num_tokens=num_tokens, arrival_s=0.0, token_ids=token_ids.int().numpy().tobytes()
    )
    paged = replace(plain, table=tuple(range(num_tokens // BLOCK_SIZE)))
    return plain, paged, paged.behind(num_tokens // 2)


@torch.inference_mode()
def main() -> None:
    """Print the medians; write all rounds where asked."""
    parser = argparse.ArgumentParser(description="Cost of pages, and gain of a hit.")
    parser.add_argument("--quick", action="store_true", help="a shorter prompt, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_tokens, num_rounds = (512, 3) if arguments.quick else (2048, 5)
    with tempfile.TemporaryDirectory() as folder:
        make_random_checkpoint(Path(folder), **SIZES)
        model = load_model(folder)
        attention = model.attention_stage(SoloCollective(), torch.float32)
        experts = model.expert_stage(range(SIZES["num_experts"]), torch.float32)
    storage = Storage(attention.cache_spec(BLOCK_SIZE), num_tokens // BLOCK_SIZE)
    attention.keep_in(storage)
    prompts = prompts_of(num_tokens)
    rounds = [
        [*(seconds(attention, experts, prompt) for prompt in prompts), write_seconds(storage, prompts[1])]
        for _ in range(num_rounds + 1)
    ][1:]
    without, pages, hit, write = ([each[idx] for each in rounds] for idx in range(4))
    ratios = {
        "pages_ratio": [a / b for a, b in zip(pages, without, strict=True)],
        "hit_ratio": [a / b for a, b in zip(hit, without, strict=True)],
    }
    print(f"{num_tokens} tokens, without pages: {statistics.median(without):.2f} s of CPU, ", end="")
    print(f"writing alone {statistics.median(write) * 1e3:.1f} ms")
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}")
    if arguments.json:
        row = {"tokens": num_tokens, "without_s": without, "pages_s": pages, "hit_s": hit, "write_s": write, **ratios}
        arguments.json.write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
