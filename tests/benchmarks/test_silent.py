"""The stand-in that takes telemetry out of an instance finds what it takes out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SILENT = Path(__file__).parents[2] / "benchmarks" / "silent"


def silenced(module: str, method: str) -> str:
    """The name of the function that is called in place of a method."""
    path = os.pathsep.join(filter(None, (str(SILENT), os.environ.get("PYTHONPATH"))))
    program = f"import {module} as module; print(module.{method}.__name__)"
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_counts_are_silenced() -> None:
    """A MoE device counts no rows."""
    assert silenced("asap_ray.telemetry.received", "Received.add") == "_nothing"


def test_devices_are_silenced() -> None:
    """A MoE device reports nothing."""
    assert silenced("asap_ray.actors.device_metrics", "DeviceMetrics.report") == "_nothing"


def test_exporters_are_silenced() -> None:
    """A frontend counts nothing."""
    assert silenced("asap_ray.actors.exporters", "PrometheusExporter.count") == "_nothing"


def test_the_timeline_is_silenced() -> None:
    """No span is recorded."""
    assert silenced("asap_ray.telemetry.recording", "Recording.stream") == "<lambda>"
