"""The four systems that are compared, on the same two cores with the same checkpoint in float32."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import yaml
from peers.server import System

from asap_ray.cli.serve import read_config
from asap_ray.config import ServeConfig, config_to
from asap_ray.errors import ConfigError
from asap_ray.spec import ParallelSpec

OURS: Final = "asap-ray"
SINGLE: Final = "vllm"
SINGLE_32K: Final = "vllm-32k"
DP_EP: Final = "vllm-dp2-ep"

VLLM_VERSION: Final = "0.32.0"
UNCHUNKED_TOKENS: Final = "32768"
KV_CACHE_BYTES: Final = 1 << 30
MAX_MODEL_LEN: Final = 8192
PLUGIN: Final = "vllm_cpu_agrs"


def systems(model: Path, config: Path | None, venv: Path, folder: Path) -> list[System]:
    """Ours, and vLLM in one process, in one process without chunks, and with data and expert parallelism.

    Args:
        model: the checkpoint.
        config: settings of ours but for the model, as `asap-ray serve --config` takes them; None: its defaults.
        venv: where vLLM is installed.
        folder: for what they keep: settings, plug-in, compiled code.

    Raises:
        ConfigError: `config` is wrong, there is no vLLM in `venv`, or this process has fewer than two cores.
    """
    if not (venv / "bin/vllm").exists():
        raise ConfigError(f"no vLLM in {venv}; make it with: benchmarks/peers/make_vllm_venv.sh {venv}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) != 2:
        raise ConfigError(f"the comparison is of two cores, this process may use {len(cores)}; see taskset")
    one = vllm(SINGLE, model, venv, folder, threads=f"{cores[0]},{cores[1]}")
    two = vllm(DP_EP, model, venv, folder, threads=f"{cores[0]}|{cores[1]}")
    options = ("--data-parallel-size", "2", "--enable-expert-parallel", "--enforce-eager")
    return [
        ours(model, config, folder),
        one,
        dataclasses.replace(one, name=SINGLE_32K, command=(*one.command, "--max-num-batched-tokens", UNCHUNKED_TOKENS)),
        dataclasses.replace(
            two,
            command=(*two.command, *options),
            environment=two.environment | {"VLLM_PLUGINS": PLUGIN},
            num_ranks=2,
        ),
    ]


def ours(model: Path, config: Path | None, folder: Path) -> System:
    """`asap-ray serve` on a local Ray."""
    default = ServeConfig(model=str(model), parallel=ParallelSpec(dp_groups=2, tp=1, moe_devices=2))
    settings = dataclasses.replace(read_config(config) if config else default, model=str(model))
    file = folder / "asap_ray.yaml"
    file.write_text(yaml.safe_dump(config_to(settings)))
    environment = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return System(
        name=OURS,
        command=(str(Path(sys.executable).parent / "asap-ray"), "serve", "--config", str(file)),
        environment=environment | os.environ,
        ready_path="/ready",
    )


def vllm(name: str, model: Path, venv: Path, folder: Path, threads: str) -> System:
    """`vllm serve`, unmodified, of one thread for every core in `threads`; | parts the cores of ranks."""
    preload = [*venv.glob("tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4"), venv / "lib/libiomp5.so"]
    environment = {
        "LD_PRELOAD": ":".join(str(library) for library in preload if library.exists()),
        "VLLM_CPU_OMP_THREADS_BIND": threads,
        "VLLM_CACHE_ROOT": str(folder / "vllm_cache"),
        "PYTHONPATH": str(_python_path(folder)),
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    inherited = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
    command = (
        *(str(venv / "bin/vllm"), "serve", str(model), "--dtype", "float32"),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--max-model-len", str(MAX_MODEL_LEN)),
        *("--no-enable-prefix-caching", "--no-enable-log-requests", "--disable-uvicorn-access-log"),
    )
    return System(
        name=name,
        command=command,
        environment=inherited | environment | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}"},
        ready_path="/health",
    )


def _python_path(folder: Path) -> Path:
    """What vLLM lacks in its environment: its own version under the name it asks for, and the plug-in."""
    path = folder / "vllm_path"
    version = path / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    plugin = path / f"{PLUGIN}-0.dist-info"
    for directory in (version, plugin):
        directory.mkdir(parents=True, exist_ok=True)
    (version / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    (plugin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:register\n")
    shutil.copy(Path(__file__).with_name(f"{PLUGIN}.py"), path)
    return path
