"""What a configuration of dies asks for in vain is refused before an actor starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asap_ray.backends.ascend import die_place, ports
from asap_ray.errors import ConfigError


def _require(monkeypatch: pytest.MonkeyPatch, torch_npu: object, **fields: Any) -> None:
    """`require_device` where the toolkit is there."""
    config: Any = SimpleNamespace(**{"kernels": "", "expert_kernel": "super_kernel", "nixl_peer": "", **fields})
    monkeypatch.setattr(ports, "require", Path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: torch_npu)
    ports.require_device(config)


def test_grouped_products_need_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its operators."""
    with pytest.raises(ConfigError, match="needs torch-npu"):
        _require(monkeypatch, None, expert_kernel="grouped_matmul")


def test_pages_on_dies_are_not_handed_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch-npu they are in memory that no decode instance pulls."""
    with pytest.raises(ConfigError, match="nixl_peer='decode:1' with device='npu'"):
        _require(monkeypatch, object(), nixl_peer="decode:1")


def test_memory_of_a_die_is_free_before_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mem_get_info` tells both in that order: 7 of 10 are used, and nine tenths may be."""
    place = object.__new__(die_place.DiePlace)
    place._device = torch.device("cpu")
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(mem_get_info=lambda: (3, 10)))
    config: Any = SimpleNamespace(device_memory_bytes=0)

    assert (place.used_bytes(), place.total_bytes(config)) == (7, 9)
