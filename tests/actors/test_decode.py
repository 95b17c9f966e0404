"""A prefill instance of two ranks and two MoE devices beside a decode instance, on one Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.actors.test_served import descendants, eventually, free_port
from tests.decode.pair import ASKED

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).parent / "pair_on_ray.py"


@dataclass
class Instance:
    """Where one listens."""

    url: str

    def post(self, **body: Any) -> dict[str, Any]:
        """A completion."""
        asked = {"temperature": 0, "return_token_ids": True} | body
        reply = httpx.post(f"{self.url}/v1/completions", json=asked, timeout=60)
        answer: dict[str, Any] = reply.raise_for_status().json()
        return answer

    def get(self, route: str) -> dict[str, int]:
        """Counts."""
        counts: dict[str, int] = httpx.get(f"{self.url}{route}", timeout=60).raise_for_status().json()
        return counts


@dataclass
class Running:
    """Both, and the process whose children they are."""

    process: subprocess.Popen[bytes]
    prefill: Instance
    decode: Instance


@pytest.fixture(scope="module")
def running(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Both, ready."""
    log, port = tmp_path_factory.mktemp("pair") / "log", free_port()
    with log.open("w") as output:
        command = [sys.executable, str(SCRIPT), str(tiny_model), str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        assert eventually(lambda: "ready" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        url = f"http://127.0.0.1:{port}"
        yield Running(process, Instance(url), Instance(f"{url}/decode"))
    finally:
        process.terminate()
        process.wait(60)


def handed_off(prefill: Instance, prompt: list[int]) -> dict[str, Any]:
    """The parameters with which a decode instance goes on."""
    params: dict[str, Any] = prefill.post(prompt=prompt, max_tokens=1, kv_transfer_params=ASKED)["kv_transfer_params"]
    return params


def test_heads_of_two_processes_are_put_together(running: Running) -> None:
    """64 tokens from pulled pages are those of a prompt computed whole, with a prefix hit too."""
    prefill, decode = running.prefill, running.decode
    prompts = [[n, 7, 8] * 33 for n in (1, 2, 1)]
    params = [handed_off(prefill, prompt) for prompt in prompts]
    pulled = [
        decode.post(prompt=ids, max_tokens=64, kv_transfer_params=p) for ids, p in zip(prompts, params, strict=True)
    ]
    alone = [decode.post(prompt=ids, max_tokens=64) for ids in prompts]

    tokens = [[answer["choices"][0]["token_ids"] for answer in answers] for answers in (pulled, alone)]
    assert tokens[0] == tokens[1]
    assert [p["remote_prefill_cached_tokens"] for p in params] == [0, 0, 96]
    assert [p["tp_size"] for p in params] == [2, 2, 2]
    assert decode.get("/pulls") == {"pulled": 3, "failed": 0, "computed": 3}
    assert prefill.get("/leases") == {"granted": 3, "pulled": 3, "aborted": 0, "expired": 0, "lost": 0, "open": 0}


def test_a_decode_instance_that_is_killed_frees_the_blocks(running: Running) -> None:
    """It waited for room and sent heartbeats; after SIGKILL nobody does, and the lease ends by time."""
    prefill, decode = running.prefill, running.decode
    ids = [9, 7, 8] * 33
    blocker = threading.Thread(target=decode_for_long, args=(decode,), daemon=True)
    blocker.start()
    assert eventually(lambda: decode.get("/pulls")["computed"] == 4)
    body = {"prompt": ids, "max_tokens": 64, "kv_transfer_params": handed_off(prefill, ids)}
    waiting = threading.Thread(target=ask, args=(decode, body), daemon=True)
    waiting.start()
    assert prefill.get("/leases")["open"] == 1
    replica = next(
        pid
        for pid in descendants(running.process.pid)
        if Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::ServeReplica:decode")
    )
    os.kill(replica, signal.SIGKILL)

    assert eventually(lambda: prefill.get("/leases")["open"] == 0)
    assert prefill.get("/leases") == {"granted": 4, "pulled": 3, "aborted": 0, "expired": 1, "lost": 0, "open": 0}
    assert len(prefill.post(prompt=ids, max_tokens=2)["choices"][0]["token_ids"]) == 2


def ask(instance: Instance, body: dict[str, Any]) -> None:
    """A client that is not answered."""
    try:
        instance.post(**body)
    except httpx.HTTPError:
        return


def decode_for_long(decode: Instance) -> None:
    """A client whose answer takes all room."""
    ask(decode, {"prompt": [1] * 250, "max_tokens": 1024})
