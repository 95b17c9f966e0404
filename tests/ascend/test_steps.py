"""The kernels carry the numbered steps of the host's code, so that the two can be read side by side."""

from __future__ import annotations

import re

import pytest

from tests.ascend.twin import ROOT

PRIMITIVES = ("async-dispatch-send", "async-dispatch-recv", "async-combine-send", "async-combine-recv")
SIDES = {
    "host": ("csrc/include/asap/protocol.hpp", "csrc/host/attention_comm.cpp", "csrc/host/moe_comm.cpp"),
    "ascend": tuple(
        f"csrc/ascend/kernels/{name}.h"
        for name in ("sync", "dispatch_send", "dispatch_recv", "combine_send", "combine_recv")
    ),
}
HEAD = "csrc/include/asap/protocol.hpp"
STEP = re.compile(r"\bsteps? (\d)(?: (?:and|to) (\d))?(?: of (async-[a-z]+-[a-z]+))?", re.IGNORECASE)


def listed() -> dict[str, set[int]]:
    """The steps of each primitive as the head of protocol.hpp lists them."""
    steps: dict[str, set[int]] = {}
    for line in (ROOT / HEAD).read_text().splitlines():
        if found := re.match(r"// (async-[a-z]+-[a-z]+),", line):
            steps[name := found[1]] = set()
        elif found := re.match(r"//   (\d)  ", line):
            steps[name].add(int(found[1]))
        elif not line.startswith("//"):
            break
    return steps


def carried(files: tuple[str, ...]) -> dict[str, set[int]]:
    """The steps that comments of these files name; one that names no primitive goes on with the last that did."""
    steps: dict[str, set[int]] = {name: set() for name in PRIMITIVES}
    for file in files:
        text = (ROOT / file).read_text()
        text = text[text.index("#include") :]  # behind the list itself
        comments = " ".join(re.findall(r"// (.*)", text))
        name = ""
        for first, last, named in STEP.findall(comments):
            name = named or name or default_of(file)
            steps[name] |= set(range(int(first), int(last or first) + 1))
    return steps


def default_of(file: str) -> str:
    """dispatch_recv.h is about async-dispatch-recv."""
    return "async-" + re.sub(r".*/|\.\w+$", "", file).replace("_", "-")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_every_step_is_where_the_other_side_has_it(side: str, primitive: str) -> None:
    """All that the list has, and none that it lacks, on the host and in the kernels."""
    assert carried(SIDES[side])[primitive] == listed()[primitive]
