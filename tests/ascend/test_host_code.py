"""csrc/ascend/host against the fake runtime: two processes, keys, launches, and what it says without CANN."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ascend.twin import FLAGS, ROOT, Twin
from tests.csrc.world import World

HOST = ROOT / "csrc/ascend/host"


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The fake libascendcl."""
    library = ROOT / "build/ascend/libascendcl.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "tests/ascend/fakecann/fake_acl.cpp"
    subprocess.run(["g++", *FLAGS, "-shared", str(source), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def program() -> Path:
    """The two processes."""
    target = ROOT / "build/ascend/host_program"
    sources = [HOST / "acl.cpp", HOST / "device.cpp", ROOT / "tests/ascend/host_program.cpp"]
    subprocess.run(["g++", *FLAGS, f"-I{HOST}", *map(str, sources), "-o", str(target)], check=True)
    return target


def run(program: Path, twin: Twin, runtime: Path, kernels: Path) -> subprocess.CompletedProcess[bytes]:
    """With the layout of one rank and one device."""
    layout = World(moe_devices=1).layout
    fields = twin.layout(layout)
    sizes = [str(twin.size(what, fields)) for what in ("plan_bytes", "item_bytes")]
    values = np.array(dataclasses.astuple(layout), dtype=np.int64).tobytes()
    command = [str(program), str(runtime), str(kernels), *sizes]
    return subprocess.run(command, input=values, capture_output=True, timeout=60, check=False)


def test_two_processes_share_buffers_by_key(program: Path, twin: Twin, runtime: Path, library: Path) -> None:
    """Tokens 0 and 1 choose experts 0, 1, 2 and 1, 2, 3: their rows come back 6 and 9 times."""
    done = run(program, twin, runtime, library)

    expected = np.arange(40).reshape(2, 20) % 5 * np.array([[6], [9]])
    assert (done.returncode, done.stderr) == (0, b"")
    assert [int(value) for value in done.stdout.split()] == expected.ravel().tolist()


def test_without_cann_it_says_what_is_missing(program: Path, twin: Twin, library: Path) -> None:
    """No library, no kernels: a sentence, and exit status 1."""
    done = run(program, twin, Path("libascendcl-absent.so"), library)

    assert done.returncode == 1
    assert b"no CANN runtime: libascendcl-absent.so" in done.stderr


def test_an_old_runtime_is_refused(program: Path, twin: Twin, tmp_path: Path, library: Path) -> None:
    """The first function it lacks is named."""
    assert shutil.which("g++")
    source, old = tmp_path / "old.c", tmp_path / "libascendcl.so"
    source.write_text("int aclInit(const char* path) { return path != 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(old)], check=True)

    done = run(program, twin, old, library)

    assert done.returncode == 1
    assert b"libascendcl has no aclrtSetDevice; CANN 8.3 or later is needed" in done.stderr


def test_nothing_is_left_in_shared_memory(program: Path, twin: Twin, runtime: Path, library: Path) -> None:
    """Every buffer is freed by its owner."""
    run(program, twin, runtime, library)

    assert not list(Path("/dev/shm").glob("asap-fake-*"))
