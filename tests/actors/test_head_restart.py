"""Ray's head process dies and is started again, with a Redis that kept what it knew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.head_restart import free_port

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.thorough,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server (Debian: redis-server)"),
]


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    """Of a Redis of our own, which keeps nothing on disk."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        yield port
        server.terminate()


def test_an_instance_outlives_a_restart_of_rays_head(tiny_model: Path, redis_port: int) -> None:
    """It answers without a GCS and with the next one, its devices go on, and one that dies then is replaced."""
    script = Path(__file__).parent / "head_restart.py"
    ended = subprocess.run(
        [sys.executable, script, tiny_model, str(redis_port)], check=False, capture_output=True, text=True, timeout=380
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])

    before = found.pop("before")
    assert found == {"without": before, "same": True, "restarted": before, "recovered": before}
