"""asap-ray make-model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asap_ray.errors import ConfigError
from asap_ray.spec import RowType


def make_model(
    directory: Annotated[Path, typer.Argument(help="Where to write the checkpoint; must not exist yet.")],
    family: Annotated[str, typer.Option(help="model_type of a family that can be served.")] = "qwen3_moe",
    hidden: Annotated[int, typer.Option(help="Hidden size.")] = 512,
    layers: Annotated[
        int, typer.Option(help="Decoder layers, all of them MoE but the first of DeepSeek-V3 and its kin.")
    ] = 6,
    heads: Annotated[int, typer.Option(help="Query heads.")] = 8,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads of grouped-query attention.")] = 2,
    head_dim: Annotated[int, typer.Option(help="Size of a head.")] = 64,
    experts: Annotated[int, typer.Option(help="Experts of a layer.")] = 16,
    top_k: Annotated[int, typer.Option(help="Experts of a token.")] = 2,
    moe_intermediate: Annotated[int, typer.Option(help="Intermediate size of an expert.")] = 512,
    vocab: Annotated[int, typer.Option(help="Vocabulary size.")] = 16384,
    positions: Annotated[int, typer.Option(help="Longest prompt and answer together.")] = 32768,
    tied: Annotated[bool, typer.Option("--tied", help="One matrix for embedding and output.")] = False,
    dtype: Annotated[RowType, typer.Option(help="Type of the stored weights.")] = RowType.BFLOAT16,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
) -> None:
    """Write a random-weight checkpoint in Hugging Face format, with a tokenizer; no network needed."""
    import torch

    from asap_ray.models.random_checkpoint import make_random_checkpoint

    if directory.exists():
        raise ConfigError(f"{directory} exists; choose another directory, or remove it")
    make_random_checkpoint(
        directory,
        family=family,
        hidden=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        num_experts=experts,
        top_k=top_k,
        moe_intermediate=moe_intermediate,
        vocab_size=vocab,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        dtype=getattr(torch, dtype),
        seed=seed,
    )
    num_bytes = sum(file.stat().st_size for file in directory.iterdir())
    Console(highlight=False, soft_wrap=True).print(f"{directory}: {num_bytes / 1e6:,.0f} MB")
