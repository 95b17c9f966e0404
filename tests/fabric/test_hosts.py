"""An instance over three hosts, each with a network, processes and memory of its own; one is cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fabric import drive
from tests.fabric.hosts import Host, can_have_hosts, hosts

NUM_HOSTS: Final = 3
ANSWER_S: Final = 150.0

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Three hosts, each a node of one Ray cluster."""
    pytest.importorskip("nixl", reason="needs the extra asap-ray[nixl]")
    if not can_have_hosts():
        pytest.skip("needs root and namespaces")
    with hosts(NUM_HOSTS, tmp_path_factory.mktemp("hosts")) as started:
        yield started


class Driver:
    """`drive.py` on the first host."""

    def __init__(self, host: Host, model: Path, log: Path) -> None:
        command = [sys.executable, "-m", "tests.fabric.drive", str(model), str(NUM_HOSTS)]
        self._log = log
        self._process = host.popen(command, log)

    def hear(self, key: str) -> dict[str, Any]:
        """The next thing it says of this kind."""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{") and key in (said := json.loads(line)):
                return dict(said)
        raise AssertionError(f"the driver ended without saying {key!r}: {self._log.read_text()[-2000:]}")

    def tell(self, *words: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
