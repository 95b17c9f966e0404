"""Under sanitizers: whole instances (stress.cpp, corrupt.cpp), the threads of one call (teams.cpp); seconds each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fno-var-tracking", "-pthread", "-Wall", "-Wextra", "-Werror", "-Icsrc/include"]
HEADERS = [*ROOT.glob("csrc/include/asap/*.hpp"), *ROOT.glob("csrc/host/*.hpp"), ROOT / "tests/csrc/instances.hpp"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


def is_older(made: Path, *sources: Path) -> bool:
    """Whether something has to be made again."""
    return not made.exists() or made.stat().st_mtime < max(path.stat().st_mtime for path in (*sources, *HEADERS))


def call(*command: str | Path) -> None:
    """A compiler."""
    subprocess.run(command, cwd=ROOT, check=True)


def build(name: str, sanitizer: str) -> Path:
    """The program tests/csrc/NAME.cpp; what is newer than its source is not compiled again."""
    folder = ROOT / "build" / f"sanitized-{sanitizer.partition(',')[0]}"
    folder.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, f"-fsanitize={sanitizer}"]
    objects = []
    for source in (*sorted(ROOT.glob("csrc/host/*.cpp")), ROOT / f"tests/csrc/{name}.cpp"):
        objects.append(folder / f"{source.stem}.o")
        if is_older(objects[-1], source):
            call("g++", *flags, "-c", source, "-o", objects[-1])
    program = folder / name
    if is_older(program, *objects):
        call("g++", *flags, "-rdynamic", *objects, "-o", program)  # crew.cpp finds the functions of teams.cpp
    return program


def run(program: Path, *numbers: int) -> subprocess.CompletedProcess[str]:
    """What a program has to say; of most, seconds and a seed."""
    command = [program, *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_random_instances_under_a_sanitizer(sanitizer: str) -> None:
    """Random shapes, sizes, slow devices, leftovers, aborts, devices and groups replaced: sums right, no report."""
    stress = run(build("stress", sanitizer), 4, 2)

    assert (stress.returncode, stress.stderr) == (0, "")


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_many_random_instances_under_a_sanitizer(sanitizer: str, seed: int) -> None:
    """The same, half a minute each."""
    stress = run(build("stress", sanitizer), 30, seed)

    assert (stress.returncode, stress.stderr) == (0, "")


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_of_one_call_under_a_sanitizer(sanitizer: str) -> None:
    """Products and attention on three threads: the bits of one, no report."""
    teams = run(build("teams", sanitizer))

    assert (teams.returncode, teams.stderr) == (0, "")


@pytest.mark.parametrize("seconds", [3, 60])
def test_corrupted_words_harm_nobody_else(seconds: int) -> None:
    """Flags, headers and doorbells overwritten at random: refused, never out of bounds, other groups' sums right."""
    corrupt = run(build("corrupt", "address,undefined"), seconds, 5)

    assert (corrupt.returncode, corrupt.stderr) == (0, "")
    refused = re.search(r"(\d+) refused", corrupt.stdout)
    assert refused is not None
    assert int(refused.group(1)) > 0
