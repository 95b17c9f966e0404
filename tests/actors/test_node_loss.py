"""A whole node goes, and its devices with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(300)]


def test_an_instance_whose_node_is_lost_serves_on_another(tiny_model: Path) -> None:
    """Ray places its devices anew; prompts wait for them, and are answered as before."""
    script = Path(__file__).parent / "node_loss.py"
    ended = subprocess.run(
        [sys.executable, script, tiny_model], check=False, capture_output=True, text=True, timeout=280
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])

    assert found["after"] == found["before"]
    assert any(name.startswith("moved:") for name in found["missing"])
