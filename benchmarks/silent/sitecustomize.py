"""On PYTHONPATH it takes telemetry out of every Python process of an instance (benchmarks/telemetry_overhead.py).

Counters of C++ and the clock readings that a TTFT's parts are made of stay: they are the product.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _nothing(*_: Any, **__: Any) -> None:
    """In place of a count."""


def _silence_exporters(module: ModuleType) -> None:
    for exporter in (module.PrometheusExporter, module.RayExporter):
        exporter.count = exporter.observe = exporter.set = _nothing


def _silence_devices(module: ModuleType) -> None:
    module.RankMetrics.report = module.DeviceMetrics.report = _nothing


def _silence_counts(module: ModuleType) -> None:
    module.Received.add = _nothing


def _silence_timeline(module: ModuleType) -> None:
    module.Recording.stream = lambda *_: _nothing


_SILENCERS: dict[str, Callable[[ModuleType], None]] = {
    "asap_ray.actors.exporters": _silence_exporters,
    "asap_ray.actors.device_metrics": _silence_devices,
    "asap_ray.telemetry.received": _silence_counts,
    "asap_ray.telemetry.recording": _silence_timeline,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds as the others do, and changes the module once it is there: importing it here would cost every process."""

    def find_spec(self, name: str, _: Sequence[str] | None, __: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _SILENCERS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        assert spec is not None
        assert spec.loader is not None
        execute, silence = spec.loader.exec_module, _SILENCERS[name]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            silence(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
