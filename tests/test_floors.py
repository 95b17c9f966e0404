"""An import only goes down a floor: docs/architecture.md is the rule, this is its judge."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def modules() -> dict[str, Path]:
    """Every module of the product by its import name."""
    found = {}
    for folder, prefix in (("asap_ray", "asap_ray"), ("actors", "asap_ray.actors")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((prefix, *parts)).removesuffix(".__init__")] = path
    return found


def floors() -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Height of each unit, and the pairs that may import on one floor."""
    text = (ROOT / "docs/architecture.md").read_text()
    block = re.search(r"```floors\n(.*?)```", text, re.DOTALL)
    assert block, "docs/architecture.md has no floors block"
    heights: dict[str, int] = {}
    allowed: set[tuple[str, str]] = set()
    height = {"roof": 9, "ground": -1}
    for line in block.group(1).splitlines():
        allowed |= set(re.findall(r"(\S+) may import (\S+)", line))
        label, *rest = re.sub(r"\S+ may import \S+", "", line).split() or [""]
        if label in height or label.isdigit():
            names = [name for name in rest if name.startswith("asap_ray.")]
            heights |= {name: height.get(label, int(label) if label.isdigit() else 0) for name in names}
    return heights, allowed


def unit(module: str, heights: dict[str, int]) -> str | None:
    """The longest unit a module belongs to."""
    owners = [name for name in heights if module == name or module.startswith(name + ".")]
    return max(owners, key=len, default=None)


def imports(path: Path) -> set[str]:
    """Absolute names of everything a file imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


HEIGHTS, ALLOWED = floors()


@pytest.mark.parametrize("module", sorted(set(modules()) - {"asap_ray"}))
def test_every_module_is_on_a_floor(module: str) -> None:
    """The picture is complete: no module stands outside it."""
    assert unit(module, HEIGHTS) is not None


@pytest.mark.parametrize("module", sorted(set(modules()) - {"asap_ray"}))
def test_imports_only_go_down(module: str) -> None:
    """No import goes up, and none goes sideways unless the picture says so."""
    own = unit(module, HEIGHTS)
    assert own is not None
    wrong = set()
    for name in imports(modules()[module]):
        other = unit(name, HEIGHTS)
        if other in (None, own) or (own, other) in ALLOWED or HEIGHTS[own] == HEIGHTS[other] == 0:
            continue
        if HEIGHTS[other] >= HEIGHTS[own]:
            wrong.add(name)
    assert wrong == set()


@pytest.mark.parametrize("module", sorted(m for m in modules() if HEIGHTS.get(unit(m, HEIGHTS) or "") == 0))
def test_floor_zero_is_stdlib_only(module: str) -> None:
    """Floor 0 imports nothing that has to be installed."""
    roots = {name.split(".")[0] for name in imports(modules()[module])}
    assert roots - {"asap_ray"} <= sys.stdlib_module_names


@pytest.mark.parametrize("module", sorted(m for m in modules() if not (m + ".").startswith("asap_ray.actors.")))
def test_only_the_actors_and_the_roof_know_ray(module: str) -> None:
    """Ray is imported in actors/ and on the roof, nowhere else."""
    roots = {name.split(".")[0] for name in imports(modules()[module])}
    assert "ray" not in roots or HEIGHTS[unit(module, HEIGHTS) or ""] == 9


def test_csrc_below_the_bindings_knows_neither_python_nor_torch() -> None:
    """Nothing under csrc/ outside bindings/ includes Python, pybind11 or torch."""
    files = [p for p in (ROOT / "csrc").rglob("*.[ch]pp") if "bindings" not in p.parts]
    assert files, "csrc/ is empty"
    wrong = [p.name for p in files if re.search(r'#include\s+["<](Python\.h|pybind11|torch|ATen)', p.read_text())]
    assert wrong == []
