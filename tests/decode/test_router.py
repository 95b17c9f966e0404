"""The `vllm-router` of PyPI, unmodified, before a pair."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.decode.pair import Pair, free_port, pair

ROUTER = Path(sys.executable).parent / "vllm-router"

pytestmark = pytest.mark.skipif(not ROUTER.exists(), reason="vllm-router is not installed: pip install vllm-router")


@asynccontextmanager
async def routed(both: Pair, log: Path) -> AsyncIterator[str]:
    """A router in a process of its own; yields its URL once it answers."""
    port, metrics_port = free_port(), free_port()
    command = [str(ROUTER), "--vllm-pd-disaggregation", "--port", str(port), "--prometheus-port", str(metrics_port)]
    ends = ["--prefill", both.prefill_url, "--decode", both.decode_url, "--worker-startup-check-interval", "1"]
    with log.open("w") as output:
        process = subprocess.Popen([*command, *ends], stdout=output, stderr=subprocess.STDOUT)
    try:
        await _answers(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as http:
        while process.poll() is None:
            try:
                if (await http.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise AssertionError(log.read_text())


def test_the_router_drives_a_pair(tiny_model: Path, tmp_path: Path) -> None:
    """Completions and chat, streamed and whole: prompts are computed here and decoded there."""

    async def work() -> tuple[list[str], list[str], int, dict[str, int]]:
        async with pair(tiny_model) as both, routed(both, tmp_path / "log") as url:
            answers = [await _answers_of(base) for base in (url, both.decode_url)]
            return answers[0], answers[1], both.decode.counts.pulled, both.prefill.hand_off.totals()

    through, direct, num_pulled, totals = asyncio.run(work())

    assert through == direct
    assert (num_pulled, totals["pulled"], totals["open"]) == (3, 3, 0)


async def _answers_of(url: str) -> list[str]:
    """To a text, to the same as a stream, and to a conversation."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": "def prefill(self, rows):", "max_tokens": 12, "temperature": 0}
    turns: Any = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0) as client:
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
        chat = await client.chat.completions.create(model="tiny", messages=turns, max_tokens=8, temperature=0)
    return [whole.choices[0].text, streamed, chat.choices[0].message.content or ""]
