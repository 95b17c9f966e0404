"""What benchmarks/vs_vllm.py says of two sides: a system that drops requests holds no aim."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def peers() -> Iterator[Any]:
    """The benchmark's own modules, which lie beside it and not in the product."""
    path = str(Path(__file__).parent.parent.parent / "benchmarks")
    sys.path.insert(0, path)
    try:
        from peers import load, systems, verdict  # noqa: PLC0415

        yield type("Peers", (), {"load": load, "systems": systems, "verdict": verdict})
    finally:
        sys.path.remove(path)


def phases_of(peers: Any, tokens_per_s: float) -> list[Any]:
    """One round of a system without failures."""
    common = {"num_requests": 10, "num_failed": 0, "lateness_p99_s": 0.0, "ttft_p50_s": 0.1, "ttft_p99_s": 0.2}
    measured = peers.load.Measured
    burst = measured(phase="burst", load=None, tokens_per_s=tokens_per_s, ttft_mean_s=0.1, **common)
    probes = [
        measured(phase=phase, load=None, tokens_per_s=None, ttft_mean_s=0.1, **common)
        for phase in ("short_alone", "long_alone", "short_beside_long")
    ]
    return [burst, *probes]


def said(peers: Any, ours: list[Any]) -> str:
    """The aims of one round against peers half as fast."""
    verdict, names = peers.verdict, peers.systems
    theirs = verdict.figures(phases_of(peers, 1000.0))
    results = {name: [theirs] for name in (names.SINGLE, names.SINGLE_32K, names.DP_EP)}
    return "\n".join(verdict.aims({names.OURS: [verdict.figures(ours)], **results}))


def test_twice_the_capacity_holds_its_aim(peers: Any) -> None:
    """2,000 against 1,000 tokens/s."""
    assert "holds   capacity over the better single process: 2" in said(peers, phases_of(peers, 2000.0))


def test_a_failed_request_voids_the_aim(peers: Any) -> None:
    """The survivors of a burst say nothing about capacity."""
    burst, *probes = phases_of(peers, 2000.0)

    text = said(peers, [replace(burst, num_failed=1), *probes])

    assert "missed  our requests that failed: 1" in text
    assert "missed  capacity over the better single process" in text
