"""Our host sources beside the runtime's own headers, which the torch-npu wheel carries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ascend.npu_venv import wheel
from tests.ascend.twin import ROOT

HOST = ROOT / "csrc/ascend/host"
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc/include'}"]


def errors_of(source: Path, host: Path = HOST) -> str:
    """What the compiler says of a source with acl/acl.h before everything else."""
    headers = ["-isystem", str(wheel() / "include"), "-include", "acl/acl.h"]
    command = ["g++", *FLAGS, f"-I{host}", *headers, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("source", sorted(HOST.glob("*.cpp")), ids=lambda path: path.stem)
def test_every_source_compiles_beside_the_headers(source: Path) -> None:
    """No name of ours means something else there."""
    assert errors_of(source) == ""


def test_every_call_and_constant_is_theirs() -> None:
    """Parameters, numbers, and the struct of physical memory, byte by byte."""
    assert errors_of(ROOT / "tests/ascend/against_headers.cpp") == ""


@pytest.mark.parametrize(
    ("name", "ours", "wrong", "refused"),
    [
        ("acl_functions.hpp", "aclrtMemset, int, void*, std::size_t", "aclrtMemset, int, void*, int", "aclrtMemset"),
        ("acl_functions.hpp", "aclrtFree, int, void*", "aclrtFree, int, void*, int", "aclrtFree"),
        ("acl_functions.hpp", "aclrtFree, int, void*", "aclrtFree, void, void*", "aclrtFree"),
        ("acl_functions.hpp", "aclrtSetDevice, int, std::int32_t", "aclrtSetDevice, int, void*", "aclrtSetDevice"),
        ("acl_functions.hpp", "std::uint32_t*", "std::uint64_t*", "aclrtGetDeviceCount"),
        ("acl_functions.hpp", "USE(aclrtUnmapMem,", "USE(aclrtUnmapMemory,", "aclrtUnmapMemory"),
        ("acl.cpp", "kVectorCores = 201", "kVectorCores = 200", "kVectorCores"),
        ("acl.cpp", "  std::uint32_t device;\n", "  std::uint64_t device;\n", "sizeof"),
    ],
)
def test_a_mismatch_is_found(tmp_path: Path, name: str, ours: str, wrong: str, refused: str) -> None:
    """One of each kind: a parameter's type, their number, a result, a pointee, a name, a constant, a field."""
    host = Path(shutil.copytree(HOST, tmp_path / "host"))
    text = (host / name).read_text()
    assert ours in text
    (host / name).write_text(text.replace(ours, wrong, 1))

    assert refused in errors_of(ROOT / "tests/ascend/against_headers.cpp", host)
