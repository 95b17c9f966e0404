"""The environment that `make npu-venv` makes: our packages, and the unmodified torch-npu wheel beside them.

There it runs over the fake runtime. What the wheel is linked with and the fake lacks is there as a
function that fails, so that nothing passes on a stub.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.ascend.twin import FAKE, ROOT, fake_runtime, shared_library

VENV: Final = ROOT / "build/npu-venv"
PYTHON: Final = VENV / "bin/python"
LIBRARIES: Final = ("hccl", "acl_op_compiler", "acl_tdt_channel", "ge_runner", "graph")
"""Of CANN, which the wheel is linked with beside libascendcl."""

OPERATORS: Final = (
    "operators",
    "elementwise",
    "copies",
    "along_axes",
    "indexing",
    "masks",
    "products",
    "attention",
    "layer",
)
"""Of the fake's libopapi, by what they have in common."""

_OF_CANN: Final = re.compile(r"(acl|Hccl|Msprof|rt[A-Z])")
_MAKES_OBJECTS: Final = re.compile(r"acl(op)?Create")
"""Functions that return a pointer: none, then."""

_UNSUPPORTED: Final = 207000


def wheel() -> Path:
    """The folder of the installed wheel; a test that needs it is skipped without."""
    found = [*VENV.glob("lib/python3.*/site-packages/torch_npu")]
    if not found:
        pytest.skip("no torch-npu wheel: run make npu-venv")
    return found[0]


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}


def _stub(name: str) -> str:
    if name.startswith("Msprof") or name == "aclAppLog":  # reports for a profiler and a log: nobody reads them
        return f"long {name}(void) {{ return 0; }}"
    return f"long {name}(void) {{ return {0 if _MAKES_OBJECTS.match(name) else _UNSUPPORTED}; }}"


def _link(target: Path, *flags: str) -> None:
    subprocess.run(["gcc", "-shared", *flags, "-o", str(target)], check=True)


def _build_operators(folder: Path) -> None:
    """Two sources at a time, and only those that are newer."""

    def compiled(name: str) -> Path:
        return shared_library(folder / f"{name}.o", [FAKE / f"{name}.cpp"], "-O3", "-fopenmp-simd", "-c")

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, OPERATORS))
    shared_library(folder / "libopapi.so", objects)


@functools.cache
def fake_toolkit() -> Path:
    """A folder with all of CANN that the wheel asks the linker for."""
    runtime, folder = fake_runtime(), fake_runtime().parent
    asked = set[str]().union(*(_symbols(path, "--undefined-only") for path in wheel().glob("lib/lib*.so")))
    lacking = sorted(name for name in asked - _symbols(runtime, "--defined-only") if _OF_CANN.match(name))
    stubs = folder / "stubs.c"
    text = "\n".join(map(_stub, lacking)) + "\n"
    if not stubs.exists() or stubs.read_text() != text:
        stubs.write_text(text)
        _link(folder / "libfake_stubs.so", "-fPIC", str(stubs))
        for name in LIBRARIES:
            _link(folder / f"lib{name}.so", "-Wl,--no-as-needed", f"-L{folder}", "-lfake_stubs", "-lascendcl")
    _build_operators(folder)
    for name in ("opp", "runtime", "compiler"):  # the wheel looks whether they are there
        (folder.parent / name).mkdir(exist_ok=True)
    return folder


def environment() -> dict[str, str]:
    """As set_env.sh of a toolkit leaves it; what has no kernel for dies raises, it does not run on the host."""
    folder = fake_toolkit()
    return {
        **os.environ,
        "ASCEND_HOME_PATH": str(folder.parent),
        "ASCEND_OPP_PATH": str(folder.parent / "opp"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
        "TORCH_NPU_FALLBACK_CPU_DISABLE": "1",
    }


def operators() -> set[str]:
    """Of CANN that the fake has, without their prefix."""
    fake_toolkit()
    names = _symbols(fake_runtime().parent / "libopapi.so", "--defined-only")
    return {name.removeprefix("aclnn") for name in names if name.startswith("aclnn") and not name.endswith("Size")}


def run_module(name: str, *args: str, timeout_s: float = 230, **variables: str) -> str:
    """What a module prints when it runs in that environment; it has to end well."""
    done = subprocess.run(
        [str(PYTHON), "-m", name, *args],
        env=environment() | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
