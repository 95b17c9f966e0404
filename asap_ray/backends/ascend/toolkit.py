"""Is there an Ascend device here, with CANN and our kernels? Looked for only when asked."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from asap_ray import _native
from asap_ray.errors import ConfigError

LIBRARY: Final = "libascendcl.so"
KERNEL_FILES: Final = ("asap_kernels.o", "libasap_tiling.so")
BUILT_KERNELS: Final = Path(__file__).parent / "built"
"""Where `make ascend` puts them."""


def library_path() -> str:
    """The runtime of the toolkit that the environment names, or the one the linker finds."""
    home = os.environ.get("ASCEND_HOME_PATH", "")
    return str(Path(home) / "lib64" / LIBRARY) if home else LIBRARY


def missing(kernels: Path) -> Iterator[str]:
    """Each thing that is not there, and where it comes from, in the order in which to get them."""
    if not os.environ.get("ASCEND_HOME_PATH"):
        yield "ASCEND_HOME_PATH is not set: source set_env.sh of CANN 8.3 or later"
    try:
        if _native.ascend.num_devices(library_path()) < 1:
            visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "not set")
            yield f"no Ascend device is visible (ASCEND_RT_VISIBLE_DEVICES is {visible}): see npu-smi info"
    except OSError as error:
        yield str(error)
    if absent := [name for name in KERNEL_FILES if not (kernels / name).exists()]:
        yield f"{kernels} has no {' and no '.join(absent)}: run make ascend, or say where they are with `kernels:`"


def require(kernels: str) -> Path:
    """The folder of the kernels, if everything is there; touches no device.

    Raises:
        ConfigError: something is missing; the text has all of it.
    """
    folder = Path(kernels) if kernels else BUILT_KERNELS
    if reasons := list(missing(folder)):
        if not importlib.util.find_spec("torch_npu"):
            reasons.append("torch_npu is not installed: pip install 'asap-ray[ascend]' (for device=\"npu\" tensors)")
        listed = " ".join(f"({n}) {reason}" for n, reason in enumerate(reasons, 1))
        raise ConfigError(f"device 'npu' cannot be used here: {listed}")
    return folder


def open_die(kernels: str) -> _native.ascend.Die:
    """This process's die: the first visible one, as Ray shows each actor its own.

    Raises:
        ConfigError: something is missing; the text has all of it.
    """
    return _native.ascend.Die(library=library_path(), kernels=str(require(kernels)), device=0)
