"""Nothing that comes over a network is unpickled by us."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNPICKLE = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
"""Modules that run what they read; `torch.load` is looked for by name."""


def readers(path: Path) -> Iterator[str]:
    """Where a file could read a pickle."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
            names = ["pickle"]
        if any(name.partition(".")[0] in UNPICKLE or name.endswith(".cloudpickle") for name in names):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_module_reads_pickles() -> None:
    """Neither a module nor a call that would; messages are msgpack, weights are safetensors."""
    modules = [*ROOT.glob("asap_ray/**/*.py"), *ROOT.glob("actors/**/*.py")]

    assert len(modules) > 100
    assert [place for path in modules for place in readers(path)] == []
