"""Devices that loaded something else, or are out of reach, do not join."""

from __future__ import annotations

import contextlib

import pytest

from asap_ray.actors.prefill_instance import agree
from asap_ray.errors import ConfigError
from asap_ray.messages import Registration


def test_the_handshake_names_two_that_differ() -> None:
    """Devices that loaded another model do not join, and the field is named with both values."""
    ours, theirs = (
        Registration(
            role="moe", index=0, tp_rank=0, pid=1, fd=2, num_bytes=3, epoch=4, node="n", fingerprint={"model": model}
        )
        for model in ("a", "b")
    )

    with pytest.raises(ConfigError, match="x:moe:0 and x:moe:1 differ in model: a and b"):
        agree({"x:moe:0": ours, "x:moe:1": theirs})


@pytest.mark.parametrize("link", [b"", b"there"])
def test_devices_of_two_nodes_need_links(link: bytes) -> None:
    """Shared memory ends with the node; what is missing is named."""
    what = {"role": "moe", "index": 0, "tp_rank": 0, "pid": 1, "fd": 2, "num_bytes": 3, "epoch": 4, "fingerprint": {}}
    pair = {f"x:moe:{node}": Registration(node=node, link=link, **what) for node in ("a", "b")}

    with contextlib.nullcontext() if link else pytest.raises(ConfigError, match=r"differ in node: a and b; .*\[nixl\]"):
        agree(pair)
