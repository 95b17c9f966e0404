"""stress.cpp under ThreadSanitizer and under AddressSanitizer, a few seconds each."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fno-var-tracking", "-pthread", "-Wall", "-Wextra", "-Werror", "-Icsrc/include"]


def build(sanitizer: str) -> Path:
    """The program, built again only when a source is newer."""
    sources = [*ROOT.glob("csrc/host/*.cpp"), ROOT / "tests/csrc/stress.cpp"]
    program = ROOT / "build" / f"stress-{sanitizer.partition(',')[0]}"
    newest = max(path.stat().st_mtime for path in [*sources, *ROOT.glob("csrc/include/asap/*.hpp")])
    if not program.exists() or program.stat().st_mtime < newest:
        program.parent.mkdir(exist_ok=True)
        command = ["g++", *FLAGS, f"-fsanitize={sanitizer}", *map(str, sources), "-o", str(program)]
        subprocess.run(command, cwd=ROOT, check=True)
    return program


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_random_instances_under_a_sanitizer(sanitizer: str) -> None:
    """Random shapes, sizes, slow devices, leftovers and aborts: every sum right, no report."""
    program = build(sanitizer)

    stress = subprocess.run([program, "4", "2"], capture_output=True, text=True, timeout=120, check=False)

    assert (stress.returncode, stress.stderr) == (0, "")
