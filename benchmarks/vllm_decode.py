"""Whether an unmodified vLLM goes on from our keys and values: prompts here, decode there, over NIXL.

    benchmarks/peers/make_vllm_venv.sh DIR nixl
    pip install 'asap-ray[nixl]'
    python benchmarks/vllm_decode.py --vllm-venv DIR [--quick] [--tp T] [--family deepseek_v3]

Every prompt is asked of vLLM alone, then of the pair as a router would, and greedy tokens are compared. Then pages are
overwritten before they are pulled, which has to change tokens, and clients leave while vLLM pulls, which has to free
the blocks. Exit status 1 if anything of it is otherwise.

Of latent attention prompts have 300 tokens at most: beyond, vLLM on CPUs disagrees with `transformers`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import torch
import yaml
from peers.server import START_S, System, adopt_orphans, running
from peers.systems import ours, vllm

from asap_ray.config import ServeConfig, config_to
from asap_ray.errors import AsapError
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.models.random_checkpoint import make_random_checkpoint
from asap_ray.models.random_config import Sizes
from asap_ray.spec import KVCacheSpec, ParallelSpec, PrefillSpec

SIDE_CHANNEL_PORT: Final = 15602
MAX_TOKENS: Final = 4000
MAX_LATENT_TOKENS: Final = 300
NUM_ANSWER: Final = 16
LEASE_S: Final = 20.0
MODEL: Final = Sizes(
    hidden=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    top_k=2,
    moe_intermediate=128,
    vocab_size=4096,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    dtype=torch.float32,
    seed=0,
)
LEAVE_S: Final = (0.005, 0.02, 0.05, 0.1, 0.2)
"""How long a client waits that leaves: before, while and after vLLM reads."""

ASKED: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt."""

    num_tokens: int
    same: bool
    corrupted: bool


def main() -> None:
    """Compare, print, write JSON."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        is_right = interoperate(options)
    except AsapError as error:
        print(f"vllm_decode: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if is_right else 1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-venv", type=Path, required=True, metavar="DIR", help="see peers/make_vllm_venv.sh")
    parser.add_argument("--quick", action="store_true", help="8 prompts instead of 50")
    parser.add_argument("--tp", type=int, default=1, metavar="T", help="ranks of our attention group")
    parser.add_argument("--family", choices=("qwen3_moe", "deepseek_v3"), default="qwen3_moe", help="of the model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument("--out", type=Path, default=Path("out/vllm_decode"), metavar="DIR", help="model, logs, caches")
    return parser.parse_args()


def interoperate(options: argparse.Namespace) -> bool:
    """Whether all of it is as it has to be."""
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model, is_latent = folder / options.family, options.family == "deepseek_v3"
    longest = MAX_LATENT_TOKENS if is_latent else MAX_TOKENS
    # vLLM's blocks have 128 tokens, or 16 of latents; a rank that reads from several wants theirs to be as large.
    block_size = 16 if is_latent else 64 if options.tp == 1 else 128
    if not (model / "config.json").exists():  # heads of 128 make latents of 512 and 64, which kernels ask for
        make_random_checkpoint(model, family=options.family, **{**MODEL, "head_dim": 128 if is_latent else 64})
    adopt_orphans()
    with (
        running(decoding(model, options.vllm_venv.absolute(), is_latent, folder), folder / "vllm.log") as decode,
        running(prefilling(model, options.tp, block_size, folder), folder / "asap-ray.log") as prefill,
        httpx.Client(timeout=120.0, trust_env=False) as http,
    ):
        pair = Pair(http, prefill, decode)
        rows = [pair.compare(ids) for ids in prompts(8 if options.quick else 50, longest)]
        # Of a single token nothing is pulled.
        corrupted = [pair.compare(ids, corrupted=True) for ids in prompts(5, longest)[1:]]
        for timeout_s in LEAVE_S:
            pair.leave(prompts(1, longest)[0], timeout_s)
        leases = pair.settled()
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in (*rows, *corrupted)], indent=1) + "\n")
    num_same, num_changed = sum(row.same for row in rows), sum(not row.same for row in corrupted)
    print(f"same tokens as vLLM alone: {num_same} of {len(rows)}")
    print(f"changed by other pages: {num_changed} of {len(corrupted)}; leases: {leases}")
    return num_same == len(rows) and num_changed == len(corrupted) and leases["open"] == 0


def prompts(number: int, longest: int) -> list[list[int]]:
    """Random tokens; lengths from 1 to `longest`, even in their logarithm, the ends of blocks among them."""
    draw = random.Random(0)
    lengths = [1, 64, 65, 128, 129] + [round(longest ** draw.random()) for _ in range(number)]
    if number == 1:
        lengths = [longest]
    return [[draw.randrange(MODEL["vocab_size"]) for _ in range(length)] for length in lengths[:number]]


def decoding(model: Path, venv: Path, is_latent: bool, folder: Path) -> System:
    """vLLM as it is, with its NixlConnector. Its latent attention in float32 has to be asked for where there is AMX."""
    alone = vllm("vllm", model, venv, folder, threads="0")
    connector = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_buffer_device": "cpu"}
    return dataclasses.replace(
        alone,
        command=(
            *(*alone.command, "--enforce-eager", "--kv-transfer-config", json.dumps(connector)),
            *(("--attention-backend", "CPU_MLA") if is_latent else ()),
        ),
        environment=alone.environment
        | {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT),
        },
    )


def prefilling(model: Path, tp: int, block_size: int, folder: Path) -> System:
    """`asap-ray serve`, one group, two MoE devices."""
    config = ServeConfig(
        model=str(model),
        parallel=ParallelSpec(dp_groups=1, tp=tp, moe_devices=2),
        prefill=PrefillSpec(max_tokens=MAX_TOKENS, solo_tokens=MAX_TOKENS // 2, inflection_tokens=1024),
        kv_cache=KVCacheSpec(block_size=block_size, memory_bytes=1 << 28),
        lease_s=LEASE_S,
        nixl_peer=f"127.0.0.1:{SIDE_CHANNEL_PORT}",
        start_timeout_s=START_S,
    )
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(config_to(config)))
    return ours(model, file, folder)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a router would stand before."""

    http: httpx.Client
    prefill: str
    decode: str

    def compare(self, ids: list[int], *, corrupted: bool = False) -> Compared:
        """A prompt through vLLM alone and through the pair."""
        alone = self._tokens(self.decode, ids, NUM_ANSWER)
        params = self._prefilled(ids)
        if corrupted:
            overwrite_pages()
        pulled = self._tokens(self.decode, ids, NUM_ANSWER, params)
        row = Compared(len(ids), alone == pulled, corrupted)
        print(f"{row}: {alone[:4]} {pulled[:4]}", flush=True)
        return row

    def leave(self, ids: list[int], timeout_s: float) -> None:
        """A client of vLLM that does not wait for its answer."""
        params = self._prefilled(ids)
        with contextlib.suppress(httpx.TimeoutException):
            self._tokens(self.decode, ids, 2000, params, timeout_s)

    def settled(self) -> dict[str, int]:
        """Our counts, once nobody is to pull any more, or leases have ended by time."""
        deadline_s = time.monotonic() + 2 * LEASE_S
        while (leases := self.http.get(f"{self.prefill}/leases").json())["open"] and time.monotonic() < deadline_s:
            time.sleep(0.2)
        counts: dict[str, int] = leases
        return counts

    def _prefilled(self, ids: list[int]) -> dict[str, Any]:
        body = {"prompt": ids, "temperature": 0, "max_tokens": 1, "kv_transfer_params": ASKED}
        reply = self.http.post(f"{self.prefill}/v1/completions", json=body)
        params: dict[str, Any] = reply.raise_for_status().json()["kv_transfer_params"]
        return params

    def _tokens(
        self, url: str, ids: list[int], max_tokens: int, params: dict[str, Any] | None = None, timeout_s: float = 120.0
    ) -> list[int]:
        body = {"prompt": ids, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": max_tokens}
        given = {"kv_transfer_params": params} if params else {}
        reply = self.http.post(f"{url}/v1/completions", json=body | given, timeout=timeout_s)
        tokens: list[int] = reply.raise_for_status().json()["choices"][0]["token_ids"]
        return tokens


def overwrite_pages() -> None:
    """Random numbers in every page of every rank on this host."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:asap-pages"):
                pid, fd = int(link.parts[2]), int(link.name)
                PageMemory.open(pid, fd, link.stat().st_size).bytes.view(torch.float32).normal_()


if __name__ == "__main__":
    main()
