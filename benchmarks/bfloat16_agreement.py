"""How often rounding changes the first greedy token: bfloat16, ours and `transformers`', and our experts in int8.

    python benchmarks/bfloat16_agreement.py [--quick] [--json FILE]

200 random prompts of 1 to 2048 tokens on a random model of 4 layers (about three minutes); --quick: 60 prompts up to
256 tokens. `resolution` is the spacing of bfloat16 numbers at the likeliest token's logit, 2^-8 of it. JSON rows:
{prompts, max_tokens, way, agreement, error, disagreements: [{margin, resolution}]}; `error` is the median over prompts
of the standard deviation of the logits' errors over that of the logits. `int8 experts` computes all else in float32,
`both` in bfloat16.
"""

# Shapes: P prompts, V vocabulary, S tokens, H hidden, R (token, expert) pairs.

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from asap_ray.backends.gloo import SoloCollective
from asap_ray.backends.threads import drive
from asap_ray.batch import Batch, Request
from asap_ray.models.experts import ExpertStage
from asap_ray.models.int8_experts import Int8ExpertStage
from asap_ray.models.model import Model, load_model
from asap_ray.models.random_checkpoint import make_random_checkpoint
from asap_ray.models.random_config import Sizes
from asap_ray.protocol import Routed

SIZES = Sizes(
    hidden=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_experts=16,
    top_k=4,
    moe_intermediate=256,
    vocab_size=4096,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    dtype=torch.bfloat16,
    seed=0,
)


Experts = ExpertStage | Int8ExpertStage


def run_experts(stage: Experts, layer: int, routed: Routed) -> torch.Tensor:
    """One MoE device with every expert: dispatch, super kernel, weighted sum."""
    experts_R, order_R = routed.expert_ids_SK.flatten().sort(stable=True)
    row_idx_R = order_R // routed.expert_ids_SK.shape[1]
    num_rows_E = experts_R.bincount(minlength=SIZES["num_experts"]).int()
    results_RH = drive(stage.super_kernel(layer, routed.hidden_SH[row_idx_R], num_rows_E))
    sums_SH = torch.zeros_like(routed.hidden_SH, dtype=torch.float32)
    sums_SH.index_add_(0, row_idx_R, results_RH.float() * routed.weights_SK.flatten()[order_R, None])
    return sums_SH.to(routed.hidden_SH.dtype)


def our_logits(model: Model, experts: Experts, dtype: torch.dtype, prompts: list[torch.Tensor]) -> torch.Tensor:
    """[P, V] with attention in `dtype`, one prompt a batch."""
    attention = model.attention_stage(SoloCollective(), dtype)
    logits = []
    for idx, prompt in enumerate(prompts):
        request = Request(
            request_id=str(idx), num_tokens=len(prompt), arrival_s=0.0, token_ids=prompt.int().numpy().tobytes()
        )
        state, expert_out = drive(attention.start(Batch((request,)))), None
        for layer in range(attention.num_layers):
            expert_out = run_experts(experts, layer, drive(attention.attend(state, layer, expert_out)))
        drive(attention.finish(state, expert_out))
        logits.append(attention.logits(state)[0])
    return torch.stack(logits)


def transformers_logits(directory: Path, prompts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """[P, V] as `transformers` computes them."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    return torch.stack([model(prompt[None], logits_to_keep=1).logits[0, -1].float() for prompt in prompts])


def compare(way: str, exact_PV: torch.Tensor, logits_PV: torch.Tensor) -> dict[str, object]:
    """One row of the result."""
    best_P2 = exact_PV.topk(2, dim=1).values
    differs_P = exact_PV.argmax(1) != logits_PV.argmax(1)
    pairs = best_P2[differs_P].tolist()
    errors_P = (exact_PV - logits_PV).std(1) / exact_PV.std(1)
    return {
        "way": way,
        "agreement": 1 - float(differs_P.float().mean()),
        "error": float(errors_P.median()),
        "disagreements": [{"margin": first - second, "resolution": abs(first) / 256} for first, second in pairs],
    }


@torch.inference_mode()
def main() -> None:
    """Print a line a way; write rows where asked."""
    parser = argparse.ArgumentParser(description="Greedy agreement of bfloat16 with float32.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter prompts, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_prompts, max_tokens = (60, 256) if arguments.quick else (200, 2048)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, max_tokens + 1, (num_prompts,), generator=generator).tolist()
    prompts = [torch.randint(SIZES["vocab_size"], (length,), generator=generator) for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make_random_checkpoint(directory, **SIZES)
        exact_PV = transformers_logits(directory, prompts, torch.float32)
        model, everyone = load_model(directory), range(SIZES["num_experts"])
        bfloat16, int8 = model.expert_stage(everyone, torch.bfloat16), model.int8_expert_stage(everyone)
        rows = [
            compare("asap-ray", exact_PV, our_logits(model, bfloat16, torch.bfloat16, prompts)),
            compare("transformers", exact_PV, transformers_logits(directory, prompts, torch.bfloat16)),
            compare("int8 experts", exact_PV, our_logits(model, int8, torch.float32, prompts)),
            compare("both", exact_PV, our_logits(model, int8, torch.bfloat16, prompts)),
        ]
    for row in rows:
        print(f"{row['way']:>13}: agreement {row['agreement']:.1%}, error {row['error']:.2%} of the logits' spread")
        print(f"{'':>15}disagreements: {row['disagreements']}")
    if arguments.json:
        size = {"prompts": num_prompts, "max_tokens": max_tokens}
        arguments.json.write_text(json.dumps([size | row for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
