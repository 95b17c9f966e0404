"""A checkpoint directory is read by slice, and what is wrong with it is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asap_ray.errors import ConfigError
from asap_ray.models.host_kernels import HOST
from asap_ray.models.model import load_model
from asap_ray.models.random_checkpoint import make_random_checkpoint, tiny
from asap_ray.models.weights import Checkpoint, Shard

MATRIX = torch.arange(24, dtype=torch.float32).view(6, 4)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two files and an index."""
    save_file({"first": MATRIX}, tmp_path / "a.safetensors")
    save_file({"second": MATRIX + 1}, tmp_path / "b.safetensors")
    write_index(tmp_path, {"first": "a.safetensors", "second": "b.safetensors"})
    return tmp_path


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    """An index as published models have it."""
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_of_several_files_are_found(sharded: Path) -> None:
    """The index says which file."""
    assert torch.equal(Checkpoint(sharded).view("second", (6, 4)), MATRIX + 1)


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    """model.safetensors alone."""
    save_file({"first": MATRIX}, tmp_path / "model.safetensors")

    assert torch.equal(Checkpoint(tmp_path).view("first", (6, 4)), MATRIX)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shards_of_all_ranks_are_the_whole(sharded: Path, size: int) -> None:
    """Both ways to split a matrix; each rank's part is its own contiguous memory, [in, out]."""
    shards = [Shard(Checkpoint(sharded), rank, size, torch.float32, HOST) for rank in range(size)]

    assert torch.equal(torch.cat([s.column_parallel("first", (6, 4)) for s in shards], dim=1), MATRIX.T)
    assert torch.equal(torch.cat([s.row_parallel("first", (6, 4)) for s in shards], dim=0), MATRIX.T)
    assert all(s.row_parallel("first", (6, 4)).is_contiguous() for s in shards)


def test_missing_tensor_is_named(sharded: Path) -> None:
    """Which tensor, in which directory."""
    with pytest.raises(ConfigError, match=r"no tensor 'third'"):
        Checkpoint(sharded).view("third", (1,))


def test_wrong_shape_is_named(sharded: Path) -> None:
    """What the file has, and what the configuration promised."""
    with pytest.raises(ConfigError, match=r"'first' has shape \(6, 4\), config.json says \(4, 6\)"):
        Checkpoint(sharded).view("first", (4, 6))


def test_quantised_tensor_is_refused(tmp_path: Path) -> None:
    """Integers are no weights we can use."""
    save_file({"first": MATRIX.to(torch.int8)}, tmp_path / "model.safetensors")

    with pytest.raises(ConfigError, match="int8"):
        Checkpoint(tmp_path).view("first", (6, 4))


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", 3])
def test_index_entry_outside_the_directory_is_refused(sharded: Path, file: str) -> None:
    """A checkpoint cannot make us read other files."""
    write_index(sharded, {"first": file})

    with pytest.raises(ConfigError, match="of this directory"):
        Checkpoint(sharded)


def test_index_to_a_missing_file_is_named(sharded: Path) -> None:
    """An incomplete download."""
    write_index(sharded, {"first": "c.safetensors"})

    with pytest.raises(ConfigError, match=r"c\.safetensors is missing"):
        Checkpoint(sharded).view("first", (6, 4))


def test_index_to_the_wrong_file_is_named(sharded: Path) -> None:
    """The file is there, the tensor is not in it."""
    write_index(sharded, {"first": "b.safetensors"})

    with pytest.raises(ConfigError, match="promised"):
        Checkpoint(sharded).view("first", (6, 4))


def test_truncated_file_is_named(tmp_path: Path) -> None:
    """An interrupted download."""
    save_file({"first": MATRIX}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])

    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}'])
def test_broken_index_is_named(sharded: Path, content: str) -> None:
    """Not JSON, or not an index."""
    (sharded / "model.safetensors.index.json").write_text(content)

    with pytest.raises(ConfigError, match=r"index\.json"):
        Checkpoint(sharded)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    """Both names it could have are in the message."""
    with pytest.raises(ConfigError, match="neither"):
        Checkpoint(tmp_path)


def test_fingerprint_tells_seeds_apart(tmp_path: Path) -> None:
    """Two trainings of one architecture must not meet in one instance."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_random_checkpoint(tmp_path / name, **{**tiny(), "seed": seed})
    prints = {name: load_model(tmp_path / name).fingerprint for name in "abc"}

    assert prints["a"] == prints["b"] != prints["c"]


def test_an_incomplete_download_is_refused_before_any_weight(tmp_path: Path) -> None:
    """The last shard has not arrived."""
    make_random_checkpoint(tmp_path, max_shard_bytes=300_000, **tiny())
    last = max(tmp_path.glob("model-*.safetensors"))
    last.unlink()

    with pytest.raises(ConfigError, match=f"{last.name} is missing"):
        load_model(tmp_path)


RESIDENT = """
import re, sys, torch
from asap_ray.models.model import load_model

class Solo:
    rank, size = 0, int(sys.argv[3])

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def mapped():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

model = load_model(sys.argv[1])
load = lambda name: (model.attention_stage(Solo, torch.float32) if name == "attention" else
                     model.expert_stage(range(0, model.spec.num_experts // Solo.size), torch.float32))
torch.randn(64, 64) @ torch.randn(64, 64)
before, before_mapped = anonymous(), mapped()
stage = load(sys.argv[2])
print(anonymous() - before, mapped() - before_mapped)
"""


def resident_after_loading(directory: Path, device: str, size: int) -> tuple[int, int]:
    """Bytes of its own, and of mapped files, that loading one of `size` devices adds to a process."""
    ran = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(directory), device, str(size)], capture_output=True, text=True, check=True
    )
    anonymous, mapped = map(int, ran.stdout.split())
    return anonymous, mapped


@pytest.mark.parametrize(("device", "size"), [("experts", 1), ("experts", 4), ("attention", 1), ("attention", 4)])
def test_a_device_holds_little_more_than_its_share(tmp_path: Path, device: str, size: int) -> None:
    """Resident memory of one of `size` devices after loading: its own bytes, and at most 6 MiB beside them."""
    sizes = {**tiny(), "hidden": 512, "moe_intermediate": 512, "vocab_size": 8192, "num_heads": 16, "num_kv_heads": 4}
    make_random_checkpoint(tmp_path, **{**sizes, "head_dim": 64})
    tensors = load_file(tmp_path / "model.safetensors")
    share = sum(t.nbytes for name, t in tensors.items() if (".experts." in name) == (device == "experts")) / size

    anonymous, mapped = resident_after_loading(tmp_path, device, size)

    assert abs(anonymous - share) < 6 << 20
    assert mapped < 6 << 20


@pytest.mark.parametrize("size", [1, 4])
def test_latent_attention_shares_all_but_the_way_down(transformers_model: Callable[..., Any], size: int) -> None:
    """Projections to the latents, the indexer and the router are whole on each of `size` ranks; the rest is divided."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "qk_nope_head_dim": 64, "v_head_dim": 64}
    directory, _ = transformers_model("DeepseekV32", hidden_size=512, vocab_size=8192, intermediate_size=2048, **heads)
    tensors = load_file(directory / "model.safetensors")
    whole = ("q_a_", "kv_a_", "indexer", ".gate.", "norm")
    share = sum(
        tensor.nbytes if any(part in name for part in whole) else tensor.nbytes // size
        for name, tensor in tensors.items()
        if ".experts." not in name
    )

    anonymous, mapped = resident_after_loading(directory, "attention", size)

    assert abs(anonymous - share) < 6 << 20
    assert mapped < 6 << 20
