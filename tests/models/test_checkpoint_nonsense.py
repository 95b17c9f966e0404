"""Safetensors files and indexes of any content: read, or refused by the name of the file or tensor."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from asap_ray.errors import ConfigError
from asap_ray.models.weights import INDEX_FILE, SINGLE_FILE, Checkpoint
from tests.nonsense import damaged, spoilt

QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
SEVERAL = settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
MATRIX = torch.arange(24, dtype=torch.float32).view(6, 4)
WHOLE = save({"first": MATRIX, "second": MATRIX.to(torch.bfloat16)})
HEADER: dict[str, Any] = json.loads(WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "little")])
CONTENT = WHOLE[8 + int.from_bytes(WHOLE[:8], "little") :]
INDEX: dict[str, Any] = {"weight_map": {"first": "a.safetensors", "second": "b.safetensors"}}
TYPES = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "I64", "U8", "BOOL", "C64", "nothing"]


def read(directory: Path) -> None:
    """Any other error than a ConfigError is a bug; what is read has the shape that was asked for."""
    with contextlib.suppress(ConfigError), Checkpoint(directory, fp8_block=(2, 2)) as checkpoint:
        checkpoint.fingerprint()
        for name in ("first", "second"):
            with contextlib.suppress(ConfigError):
                assert checkpoint.view(name, (6, 4)).shape == (6, 4)
            with contextlib.suppress(ConfigError):
                assert checkpoint.part(name, (6, 4), rows=slice(1, 3)).shape == (2, 4)


def with_header(header: object) -> bytes:
    """The file with another header."""
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + CONTENT


@given(content=damaged(WHOLE))
@SEVERAL
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    """Truncated, reordered, overwritten."""
    (tmp_path / SINGLE_FILE).write_bytes(content)

    read(tmp_path)


@given(header=spoilt(HEADER), length=st.none() | st.integers(0, 2**64 - 1))
@SEVERAL
def test_a_spoilt_header_is_read_or_refused(tmp_path: Path, header: dict[str, Any], length: int | None) -> None:
    """Offsets, types, shapes and the length of the header itself."""
    content = with_header(header)
    (tmp_path / SINGLE_FILE).write_bytes(content if length is None else length.to_bytes(8, "little") + content[8:])

    read(tmp_path)


@pytest.mark.parametrize("dtype", TYPES)
def test_another_type_is_read_or_refused(tmp_path: Path, dtype: str) -> None:
    """Those that torch knows, those that it does not, and those that nobody knows."""
    (tmp_path / SINGLE_FILE).write_bytes(with_header({"first": HEADER["first"] | {"dtype": dtype}}))

    read(tmp_path)


@given(index=spoilt(INDEX))
@SEVERAL
def test_a_spoilt_index_is_read_or_refused(tmp_path: Path, index: dict[str, Any]) -> None:
    """Any object."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(WHOLE)
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))

    read(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/secret.safetensors",
        "./secret.safetensors",
        "..",
        "",
        ".safetensors/..",
        "\0.safetensors",
        "config.json",
        None,
        7,
        ["a.safetensors"],
    ],
)
def test_an_index_that_leaves_its_directory_is_refused_by_name(tmp_path: Path, file: object) -> None:
    """Before anything there is opened."""
    directory = tmp_path / "checkpoint"
    (directory / "sub").mkdir(parents=True)
    for place in (tmp_path, directory / "sub", directory):
        (place / "secret.safetensors").write_bytes(WHOLE)
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": {"first": file}}))

    with pytest.raises(ConfigError, match=r"'first' lies in .*, not a safetensors file of this directory"):
        Checkpoint(directory)


def test_a_deep_index_is_refused_by_name(tmp_path: Path) -> None:
    """The parser would run out of stack."""
    (tmp_path / INDEX_FILE).write_text('{"weight_map":' * 20_000)

    with pytest.raises(ConfigError, match="is not a safetensors index"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", [INDEX_FILE, SINGLE_FILE])
def test_a_folder_in_the_place_of_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """An interrupted download may leave one."""
    (tmp_path / name).mkdir()

    with pytest.raises(ConfigError, match=name):
        Checkpoint(tmp_path)
