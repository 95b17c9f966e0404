"""DeepSeek sparse attention: the indexer's time grows with the square of a prompt, the sparse core's with its length.

    python benchmarks/sparse_attention.py [--quick] [--json FILE]

One layer with random weights on one thread, float32: 4 heads with latents of 128 + 32, 8 heads of the indexer with 64
dimensions, 512 tokens chosen. A prompt of 4k to 32k tokens (--quick: 2k to 8k) goes through the layer whole; then its
two parts, block by block as the layer runs them. `peak_bytes` is the resident memory the whole layer needed beyond what
was there before it; one float32 matrix of all scores of a head would be `square_bytes`. JSON rows: {tokens, indexer_s,
core_s, layer_s, peak_bytes, square_bytes}.
"""

# Shapes: S tokens, H hidden, I heads of the indexer of X dimensions, N heads, W cached, K chosen, b a block,
#         A what attention needs of a token.

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from asap_ray.models.dsa import SparseLatent, SparseLatentAttention, score, slices_of
from asap_ray.models.host_kernels import HOST
from asap_ray.models.mla import Latent
from asap_ray.models.passes import Sequence
from asap_ray.models.rope import Rope
from asap_ray.models.weights import Checkpoint, Shard

HIDDEN = 512
SIZES = SparseLatent(
    latent=Latent(
        num_heads=4, query_rank=192, latent_rank=128, nope_dim=64, value_dim=64, rope=Rope(dim=32, theta=1e4)
    ),
    num_heads=8,
    head_dim=64,
    top_k=512,
)


def make_layer(directory: Path) -> SparseLatentAttention:
    """Write one layer's attention, and read it."""
    latent, generator = SIZES.latent, torch.Generator().manual_seed(0)
    shapes = {
        "q_a_proj": (latent.query_rank, HIDDEN),
        "q_b_proj": (latent.num_heads * latent.head_dim, latent.query_rank),
        "kv_a_proj_with_mqa": (latent.kept_dim, HIDDEN),
        "kv_b_proj": (latent.num_heads * (latent.nope_dim + latent.value_dim), latent.latent_rank),
        "o_proj": (HIDDEN, latent.num_heads * latent.value_dim),
        "indexer.wq_b": (SIZES.num_heads * SIZES.head_dim, latent.query_rank),
        "indexer.wk": (SIZES.head_dim, HIDDEN),
        "indexer.weights_proj": (SIZES.num_heads, HIDDEN),
    }
    tensors = {f"{name}.weight": torch.randn(s, generator=generator) / s[1] ** 0.5 for name, s in shapes.items()}
    tensors |= {"q_a_layernorm.weight": torch.ones(latent.query_rank)}
    tensors |= {"kv_a_layernorm.weight": torch.ones(latent.latent_rank)}
    tensors |= {"indexer.k_norm.weight": torch.ones(SIZES.head_dim), "indexer.k_norm.bias": torch.zeros(SIZES.head_dim)}
    prefix = "model.layers.0.self_attn."
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    with Checkpoint(directory) as checkpoint:
        return SparseLatentAttention(Shard(checkpoint, 0, 1, torch.float32, HOST), SIZES, HIDDEN, layer_idx=0)


def resident(which: str) -> int:
    """VmRSS or its peak VmHWM, in bytes."""
    found = re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def measure(layer: SparseLatentAttention, num_tokens: int) -> dict[str, float]:
    """One row of the result."""
    generator = torch.Generator().manual_seed(num_tokens)
    hidden_SH = torch.randn(num_tokens, HIDDEN, generator=generator)
    angles = SIZES.rope.angles_at(torch.arange(num_tokens))
    rows_SA = layer.compress(hidden_SH)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before, start = resident("VmRSS"), time.perf_counter()
    layer(rows_SA, angles, [Sequence(slice(0, num_tokens))])
    layer_s, peak = time.perf_counter() - start, resident("VmHWM") - before

    query_SIX = torch.randn(num_tokens, SIZES.num_heads, SIZES.head_dim, generator=generator)
    weights_SI = torch.randn(num_tokens, SIZES.num_heads, generator=generator)
    key_SX = torch.randn(num_tokens, SIZES.head_dim, generator=generator)
    query_SNW = torch.randn(num_tokens, SIZES.latent.num_heads, SIZES.latent.kept_dim, generator=generator)
    kept_SW = torch.randn(num_tokens, SIZES.latent.kept_dim, generator=generator)
    indexer_s = core_s = 0.0
    for block in slices_of(range(SIZES.top_k, num_tokens), layer.block_size(num_tokens)):
        start = time.perf_counter()
        scores = score(query_SIX[block], weights_SI[block], key_SX[: block.stop])
        chosen_bK = scores.topk(SIZES.top_k, dim=-1, sorted=False).indices
        middle = time.perf_counter()
        layer.mix(query_SNW[block], kept_SW, chosen_bK)
        indexer_s, core_s = indexer_s + middle - start, core_s + time.perf_counter() - middle
    return {
        "tokens": num_tokens,
        "indexer_s": indexer_s,
        "core_s": core_s,
        "layer_s": layer_s,
        "peak_bytes": peak,
        "square_bytes": 4 * num_tokens**2,
    }


@torch.inference_mode()
def main() -> None:
    """Print a line a length; write rows where asked."""
    parser = argparse.ArgumentParser(description="Cost of sparse attention against the length of a prompt.")
    parser.add_argument("--quick", action="store_true", help="shorter prompts, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lengths = [2048, 4096, 8192] if arguments.quick else [4096, 8192, 16384, 32768]
    with tempfile.TemporaryDirectory() as folder:
        layer = make_layer(Path(folder))
    measure(layer, lengths[0])  # warm
    rows = [measure(layer, num_tokens) for num_tokens in lengths]
    for row in rows:
        peak, square = row["peak_bytes"] / 1e6, row["square_bytes"] / 1e6
        print(f"{row['tokens']:>6} tokens: indexer {row['indexer_s']:6.2f} s, core {row['core_s']:6.2f} s, ", end="")
        print(f"layer {row['layer_s']:6.2f} s, peak {peak:4.0f} MB (s x s: {square:4.0f} MB)")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
