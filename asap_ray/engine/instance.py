"""A whole prefill instance in one runtime: every loop side by side (3.1)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from asap_ray.engine import attention, experts
from asap_ray.protocol import Runtime

AttentionLoop = Callable[[attention.Rank], Coroutine[Any, Any, None]]
ExpertsLoop = Callable[[experts.Device], Coroutine[Any, Any, None]]


async def serve(
    runtime: Runtime,
    ranks: Sequence[attention.Rank],
    devices: Sequence[experts.Device],
    loops: tuple[AttentionLoop, ExpertsLoop] = (attention.serve, experts.serve),
) -> None:
    """Run D * T attention loops and E MoE loops until one fails or the runtime closes.

    Actors run one loop each instead; nothing but the placement differs. An ablation is another pair of `loops`.
    """
    attend, serve_experts = loops
    await runtime.gather(*map(attend, ranks), *map(serve_experts, devices))
