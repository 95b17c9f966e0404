"""What `--device npu` needs, and what it says when something of it is missing."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest

from asap_ray import _native
from asap_ray.backends.ascend.toolkit import missing, open_die, require
from asap_ray.errors import ConfigError
from tests.ascend.twin import Twin, fake_runtime, kernels_folder
from tests.csrc.world import World


@pytest.fixture
def cann(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a machine with CANN and four devices, all of them fake."""
    home = fake_runtime().parent.parent
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    return home


def test_nothing_is_missing_where_everything_is(cann: Path) -> None:
    """The die is there, with as many cores as the runtime says."""
    assert cann
    assert list(missing(kernels_folder())) == []
    assert open_die(str(kernels_folder())).cores == (4, 2)


def test_a_machine_without_cann_is_told_all_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment, library, kernels, each with what to do."""
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)

    with pytest.raises(ConfigError) as refused:
        require(str(tmp_path))

    text = str(refused.value)
    assert text.startswith("device 'npu' cannot be used here: (1) ASCEND_HOME_PATH is not set")
    assert "(2) no CANN runtime: libascendcl.so: cannot open shared object file" in text
    assert f"(3) {tmp_path} has no asap_kernels.o and no libasap_tiling.so: run make ascend" in text


def test_an_old_runtime_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first function it lacks is named."""
    source, old = tmp_path / "old.c", tmp_path / "lib64/libascendcl.so"
    old.parent.mkdir()
    source.write_text("int aclInit(const char* path) { return path != 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(old)], check=True)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))

    assert list(missing(kernels_folder())) == [
        "libascendcl has no aclrtGetDeviceCount; CANN 8.3 or later is needed",
    ]


def test_a_device_that_is_not_visible_is_named() -> None:
    """The fake runtime has four."""
    with pytest.raises(OSError, match="device 7 of 4 visible Ascend devices"):
        _native.ascend.Die(str(fake_runtime()), str(kernels_folder()), 7)


@pytest.mark.parametrize("tp", [1, 3])
def test_the_host_knows_the_kernels_private_memory(twin: Twin, tp: int) -> None:
    """csrc/ascend/host/private_memory.hpp agrees with what the kernels carve."""
    layout = World(tp=tp, moe_devices=3).layout
    fields, native = twin.layout(layout), _native.Layout(**dataclasses.asdict(layout))

    sizes = {name: twin.size(name, fields) for name in ("plan_bytes", "item_bytes", "item_rows")}
    sizes["workspace_bytes"] = twin.size("super_kernel_bytes", 12)
    sizes["int8_workspace_bytes"] = twin.size("super_kernel_int8_bytes", layout.hidden, 12)

    assert _native.ascend.private_memory(layout=native, intermediate=12, element_bytes=4) == sizes
    assert np.all(np.array(list(sizes.values())) > 0)
